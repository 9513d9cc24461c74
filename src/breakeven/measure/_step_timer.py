"""Time a script's steps as they pass by: for the plain run."""

from __future__ import annotations

import itertools
from collections import Counter

from breakeven.timing import Clock, Measurement, find_round_ends, find_warmup
from breakeven.units import NS_PER_S

_MIN_SAMPLES = 5
_MAX_SAMPLES = 2_000


class StepTimer:
    """Takes the time at each optimizer call and decides when that is enough.

    Args:
        clock: Host clock that can wait for the device.
        budget_s: Seconds of steps that are enough when they are short. Slow steps get more time,
            until there are two of them. A first step that is longer than that counts for nothing:
            it compiles, or loads data, and says little about those that follow.
        calls_per_mark: Calls of one optimizer between two readings of the clock. On a GPU waiting
            for the device at each step would hide the overlap of host and device, so several
            steps make one sample there.
    """

    def __init__(self, clock: Clock, budget_s: float, calls_per_mark: int = 1) -> None:
        self._clock = clock
        self._budget_ns = budget_s * NS_PER_S
        self._calls_per_mark = calls_per_mark
        self._optimizers: list[int] = []
        self._calls: Counter[int] = Counter()
        self._marks_ns: list[int] = []
        self._is_first_known = False
        # Since when the budget is being spent; the first mark until it is known to be late.
        self._begun_ns: int | None = None

    @property
    def first_end_ns(self) -> int:
        """Return when the first step ended, by the clock; 0 before it has."""
        ends = find_round_ends(self._optimizers)
        return self._marks_ns[ends[0]] if ends else 0

    @property
    def num_calls(self) -> int:
        """Return the optimizer calls so far."""
        return len(self._optimizers)

    def mark(self, optimizer: int) -> bool:
        """Note an optimizer call; return whether there are samples enough.

        Args:
            optimizer: Its number.
        """
        self._optimizers.append(optimizer)
        # Counted for each optimizer: of a GAN's calls in turn, every tenth is never the
        # generator's, with which a step ends.
        is_reading = self._calls[optimizer] % self._calls_per_mark == 0
        self._calls[optimizer] += 1
        if is_reading:
            self._clock.synchronize()
        self._marks_ns.append(self._clock.now_ns() if is_reading else -1)
        return is_reading and self._is_enough()

    def samples_ns(self) -> tuple[int, ...]:
        """Return the duration of every step between two ends of a step.

        The first step has no beginning: what a script does before its first update is no step.
        """
        ends = [
            (count, self._marks_ns[position])
            for count, position in enumerate(find_round_ends(self._optimizers))
            if self._marks_ns[position] >= 0
        ]
        return tuple(
            (later_ns - earlier_ns) // (later - earlier)
            for (earlier, earlier_ns), (later, later_ns) in itertools.pairwise(ends)
        )

    def measurement(self) -> Measurement | None:
        """Return the samples so far, or None when there is no complete step."""
        samples = self.samples_ns()
        if not samples:
            return None
        return Measurement(
            samples_ns=samples, num_warmup=min(find_warmup(samples), len(samples) - 1)
        )

    def _is_enough(self) -> bool:
        if self._begun_ns is None:
            self._begun_ns = self._marks_ns[0]
        elapsed_ns = self._marks_ns[-1] - self._begun_ns
        if elapsed_ns < self._budget_ns and len(self._marks_ns) < _MAX_SAMPLES:
            return False
        samples_ns = self.samples_ns()
        if not self._is_first_known and samples_ns:
            self._is_first_known = True
            if samples_ns[0] > self._budget_ns:
                self._begun_ns = self._marks_ns[-1]
                return False
        are_slow = bool(samples_ns) and samples_ns[-1] > self._budget_ns
        if are_slow or elapsed_ns >= 2 * self._budget_ns:
            return len(samples_ns) >= 2
        return len(samples_ns) >= _MIN_SAMPLES
