"""The processor that this runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cpu_name() -> str:
    """Return the processor's name, as the operating system gives it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def num_cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Return the physical cores that this process may use.

    Linux says which processors share a core; elsewhere each processor counts as one.

    Args:
        topology: The kernel's folder of processors.
    """
    if not hasattr(os, "sched_getaffinity"):  # not on macOS
        return os.cpu_count() or 1
    return len({_siblings(topology / f"cpu{number}", number) for number in os.sched_getaffinity(0)})


def _siblings(folder: Path, number: int) -> str:
    """Return the processors that share a core, which is the same text for each of them."""
    try:
        return (folder / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)
