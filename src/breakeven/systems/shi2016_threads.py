"""How many threads to try on this CPU."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the cores, and the cores themselves."""
    counts = {2**i for i in range(num_cores.bit_length())}
    return tuple(sorted({*counts, num_cores}))


def gains(times_ns: Iterable[float]) -> tuple[float, ...]:
    """Return by which factor each time is shorter than the one before it."""
    return tuple(before / after for before, after in pairwise(times_ns))
