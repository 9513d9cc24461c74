"""How much time tuning may still take."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class Budget:
    """Seconds that all trials together may take, from creation on.

    Args:
        total_s: How many; at least 0.
        clock_s: Tells the time, in seconds.
    """

    def __init__(self, total_s: float, clock_s: Callable[[], float] = monotonic) -> None:
        if not total_s >= 0:
            raise ValueError(f"a budget of {total_s} s makes no sense")
        self.total_s = total_s
        self._clock_s = clock_s
        self._start_s = clock_s()

    @property
    def spent_s(self) -> float:
        """Return the seconds since creation."""
        return self._clock_s() - self._start_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.total_s - self.spent_s)

    def fits(self, needed_s: float) -> bool:
        """Return whether something that takes ``needed_s`` seconds would end in time."""
        return needed_s <= self.left_s
