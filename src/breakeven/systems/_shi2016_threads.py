"""How many threads to try on this CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Return the physical cores that this process may use.

    Linux says which processors share a core; elsewhere each processor counts as one.

    Args:
        topology: The kernel's folder of processors.
    """
    if not hasattr(os, "sched_getaffinity"):  # not on macOS
        return os.cpu_count() or 1
    return len({_siblings(topology / f"cpu{number}", number) for number in os.sched_getaffinity(0)})


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the cores, and the cores themselves."""
    counts = {2**i for i in range(num_cores.bit_length())}
    return tuple(sorted({*counts, num_cores}))


def gains(times_ns: Iterable[float]) -> tuple[float, ...]:
    """Return by which factor each time is shorter than the one before it."""
    return tuple(before / after for before, after in pairwise(times_ns))


def _siblings(folder: Path, number: int) -> str:
    """Return the processors that share a core, which is the same text for each of them."""
    try:
        return (folder / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)
