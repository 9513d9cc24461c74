"""The memory of this machine and of this process, as the operating system reports it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from breakeven.processor import sysctl

try:
    import resource
except ImportError:  # Windows
    resource: Any = None

_MEMORY = Path("/proc/meminfo")


def physical_bytes() -> int:
    """Return this machine's memory in bytes."""
    told = sysctl("hw.memsize")
    if told.isdigit():
        return int(told)
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _windows_status().total_bytes


def available_bytes() -> int | None:
    """Return the bytes available without swapping; None if unknown, as on macOS."""
    if hasattr(ctypes, "WinDLL"):
        return _windows_status().available_bytes
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # Source: proc(5), in KiB.
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    if resource is None:
        return _windows_peak_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def num_page_faults() -> int:
    """Return the minor page faults of this process, which read no disk; 0 on Windows.

    Windows does not separate minor from major faults.
    """
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows. Source: sysinfoapi.h."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("load_percent", ctypes.c_uint32),
        ("total_bytes", ctypes.c_uint64), ("available_bytes", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )  # fmt: skip


class _ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of Windows. Source: psapi.h."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("num_page_faults", ctypes.c_uint32),
        ("peak_bytes", ctypes.c_size_t), ("others", ctypes.c_size_t * 7),
    )  # fmt: skip


def _windows_status() -> Any:
    status = _MemoryStatus(size=ctypes.sizeof(_MemoryStatus))
    _kernel32().GlobalMemoryStatusEx(ctypes.byref(status))
    return status


def _windows_peak_bytes() -> int:
    counters = _ProcessMemory(size=ctypes.sizeof(_ProcessMemory))
    kernel = _kernel32()
    # By default a handle would be cut to 32 bits.
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size)
    return counters.peak_bytes


def _kernel32() -> Any:
    windows: Any = ctypes
    return windows.WinDLL("kernel32")
