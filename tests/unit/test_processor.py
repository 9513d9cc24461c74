"""The processor's name."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from breakeven import processor
from breakeven.processor import cpu_name, cpu_quota


def read_cpuinfo(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    monkeypatch.setattr(processor, "Path", lambda _: path)
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
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert read_cpuinfo(monkeypatch, path) == "aarch64"


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
