"""How much time tuning may still take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

# Of a budget, trials that bring nothing may take this part: those that promise most come first,
# and where they fail, the rest hardly helps.
_WASTED_FRACTION = 0.5


class TimeBudget:
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
        self._kept_back_s = 0.0
        self._wasted_s = 0.0
        self._trial_start_s: float | None = None

    @property
    def spent_s(self) -> float:
        """Return the seconds since creation."""
        return self._clock_s() - self._start_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.total_s - self.spent_s - self._kept_back_s)

    def fits(self, needed_s: float) -> bool:
        """Return whether something that takes ``needed_s`` seconds would end in time."""
        return needed_s <= self.left_s

    @property
    def wasted_s(self) -> float:
        """Return the seconds of trials that brought nothing, and of the one that goes on."""
        running_s = 0.0 if self._trial_start_s is None else self._clock_s() - self._trial_start_s
        return self._wasted_s + running_s

    @property
    def left_to_waste_s(self) -> float:
        """Return the seconds that may still go into trials that bring nothing, at least 0."""
        return max(0.0, _WASTED_FRACTION * self.total_s - self.wasted_s)

    @contextmanager
    def kept_back(self, seconds: float) -> Iterator[None]:
        """Leave so many seconds to what comes after.

        Args:
            seconds: At least 0.
        """
        self._kept_back_s += seconds
        try:
            yield
        finally:
            self._kept_back_s -= seconds

    @contextmanager
    def trial(self, num_useful: Callable[[], int]) -> Iterator[None]:
        """Count what is done inside as wasted, unless it brings something.

        Args:
            num_useful: Tells how many useful things were found so far.
        """
        before = num_useful()
        self._trial_start_s = self._clock_s()
        try:
            yield
        finally:
            self._wasted_s = self._wasted_s if num_useful() > before else self.wasted_s
            self._trial_start_s = None
