"""The processor's name, its cores, and whether it multiplies 16-bit formats."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from breakeven import processor
from breakeven.processor import (
    cpu_name,
    cpu_quota,
    cpuinfo_has_half,
    has_half_hardware,
    num_cores,
    num_physical_cores,
    sysctl,
)


def read_cpuinfo(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    monkeypatch.setattr(processor, "_CPUINFO", path)
    return cpu_name()


def test_processor_is_called_what_the_system_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel\t\t: 49\nmodel name\t: AMD EPYC: 7B12\nmodel name\t: other\n"
    )
    assert read_cpuinfo(monkeypatch, path) == "AMD EPYC: 7B12"


@pytest.mark.parametrize("text", ["processor\t: 0\nBogoMIPS\t: 50.00\n", None])
def test_processor_without_a_model_name_is_called_by_its_kind(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(processor, "sysctl", lambda _: "")
    monkeypatch.setitem(sys.modules, "winreg", None)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert read_cpuinfo(monkeypatch, path) == "aarch64"


def test_macos_is_asked_by_sysctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"machdep.cpu.brand_string": "Apple M2 Pro", "hw.physicalcpu": "10"}

    def run(command: Sequence[str], **_: Any) -> SimpleNamespace:
        program, option, name = command
        assert (program, option) == ("/usr/sbin/sysctl", "-n")
        return SimpleNamespace(stdout=told.get(name, "") + "\n")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert read_cpuinfo(monkeypatch, tmp_path / "none") == "Apple M2 Pro"
    assert (num_cores(), num_physical_cores()) == (12, 10)
    told.clear()
    assert num_physical_cores() == 12


def test_only_macos_is_asked_by_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(subprocess, "run", None)
    assert sysctl("hw.memsize") == ""


def test_a_sysctl_that_cannot_be_had_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert sysctl("hw.memsize") == ""


def test_windows_tells_the_processor_in_its_registry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[tuple[str, str]] = []

    def open_key(root: str, name: str) -> Any:
        opened.append((root, name))
        return nullcontext({"ProcessorNameString": ("Intel(R) Core(TM) i7-12700H  ", 1)})

    registry = SimpleNamespace(
        HKEY_LOCAL_MACHINE="machine", OpenKey=open_key, QueryValueEx=lambda key, name: key[name]
    )
    monkeypatch.setitem(sys.modules, "winreg", registry)  # type: ignore[arg-type]
    assert read_cpuinfo(monkeypatch, tmp_path / "none") == "Intel(R) Core(TM) i7-12700H"
    assert opened == [("machine", r"HARDWARE\DESCRIPTION\System\CentralProcessor\0")]


@pytest.mark.parametrize(
    ("groups", "limits", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        # Of a container's own view: the path is that of the machine outside.
        ("0::/far/away\n", {"cpu.max": "50000 100000"}, 0.5),
        ("4:memory:/m\n1:cpu,cpuacct:/a\n", {"cpu/a/": "25000"}, 0.25),
        ("1:cpu:/a\n", {"cpu/a/": "-1"}, None),
        ("1:cpuset:/\n", {"cpu.max": "50000 100000"}, None),
    ],
)
def test_a_control_group_says_how_much_of_the_processors_there_is(
    tmp_path: Path, groups: str, limits: dict[str, str], quota: float | None
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in limits.items():
        files = {name: text}
        if name.endswith("/"):  # the first version of control groups has two files
            files = {f"{name}cpu.cfs_quota_us": text, f"{name}cpu.cfs_period_us": "100000"}
        for path, limit in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{limit}\n")
    assert cpu_quota(tmp_path / "groups", tmp_path) == quota


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd i8mm bf16\n", True),
        ("flags\t\t: fpu sse2 avx2 avx512f\n", False),
        # A name that only begins alike, and one in another line.
        ("flags\t\t: bf16x amx_bf16_old\nmodel name\t: amx_bf16\n", False),
        ("", False),
        ("\x00\ufffd no colon here", False),
    ],
)
def test_flags_of_linux(text: str, expected: bool) -> None:
    assert cpuinfo_has_half(text, "bf16") is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_fp16\n", True),
        ("Features\t: fp asimd fphp asimdhp\n", True),
        # Conversions, and the other format: no arithmetic of its own.
        ("flags\t\t: fpu f16c avx512f avx512_bf16\n", False),
    ],
)
def test_flags_of_half_precision(text: str, expected: bool) -> None:
    assert cpuinfo_has_half(text, "fp16") is expected


def test_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert not has_half_hardware("bf16")

    (tmp_path / "cpuinfo").write_bytes(b"model name : \xff\nflags : avx512_bf16\n")
    assert has_half_hardware("bf16")


@pytest.mark.parametrize(("answer", "expected"), [("1", True), ("0", False), ("", False)])
def test_apple_is_asked(answer: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sysctl(name: str) -> str:
        asked.append(name)
        return answer

    monkeypatch.setattr(processor.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(processor, "sysctl", sysctl)
    assert has_half_hardware("bf16") is expected
    assert asked == ["hw.optional.arm.FEAT_BF16"]


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system does not tell a process's processors"
)
@pytest.mark.parametrize(
    ("siblings", "usable", "num_cores"),
    [
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 1, 2, 3}, 2),  # two threads are one core
        ({0: "0", 1: "1", 2: "2", 3: "3"}, {3}, 1),  # only those that the process may use
        ({}, {0, 1, 2}, 3),  # the kernel does not tell
    ],
)
def test_physical_cores_are_counted_once(
    siblings: dict[int, str],
    usable: set[int],
    num_cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, text in siblings.items():
        place = tmp_path / f"cpu{number}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert num_physical_cores(tmp_path) == num_cores
