"""The memory of this machine and of this process, as each system tells it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from breakeven import memory


class Kernel32:
    """That of a machine of 8 GiB, of which 4 are free."""

    def __init__(self) -> None:
        def process() -> int:
            return 2**64 - 1

        self.GetCurrentProcess = process

    def GlobalMemoryStatusEx(self, status: Any) -> int:  # noqa: N802 - Windows' name
        told = status._obj
        assert told.size == 64  # or Windows refuses to answer
        told.total_bytes, told.available_bytes = 8 << 30, 4 << 30
        return 1

    def K32GetProcessMemoryInfo(self, process: Any, counters: Any, size: int) -> int:  # noqa: N802
        assert process.value == 2**64 - 1
        assert size == ctypes.sizeof(counters._obj) == 72
        counters._obj.peak_bytes = 5 << 30
        return 1


def test_windows_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "sysctl", lambda _: "")
    monkeypatch.setattr(ctypes, "WinDLL", {"kernel32": Kernel32()}.__getitem__, raising=False)
    monkeypatch.setattr(memory, "resource", None)
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert memory.physical_bytes() == 8 << 30
    assert memory.available_bytes() == 4 << 30
    assert memory.peak_bytes() == 5 << 30
    assert memory.num_page_faults() == 0


def test_macos_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "sysctl", {"hw.memsize": "17179869184"}.__getitem__)
    assert memory.physical_bytes() == 16 << 30


def test_linux_tells_what_can_be_had_without_swapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ctypes, "WinDLL", raising=False)
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(memory, "_MEMORY", told)
    assert memory.available_bytes() == 2 << 20
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "none")
    assert memory.available_bytes() is None


def test_a_process_has_had_at_least_what_it_holds() -> None:
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert len(block) <= memory.peak_bytes() <= memory.physical_bytes()
