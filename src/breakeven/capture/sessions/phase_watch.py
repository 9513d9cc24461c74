"""Time the parts of a step as they pass by: for the plain run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from breakeven.capture.sessions.backward_calls import BackwardCall, BackwardCalls
from breakeven.measure import own_time_ns
from breakeven.timing import StepPhases


class _Update(NamedTuple):
    """What there was from one update to the next: backward passes, and the time since the last."""

    backward_ns: int
    optimizer_ns: int


class PhaseWatch(BackwardCalls):
    """Takes the time of backward passes, and from the last of them to the end of the update."""

    def __init__(self) -> None:
        super().__init__(self._end_backward)
        self._updates: list[_Update] = []
        self._backward_ns = 0
        # Since when the update lasts: the end of the last backward pass, or of another update.
        self._last_end_ns = 0

    def mark(self) -> None:
        """Note the end of an update."""
        now_ns = own_time_ns()
        is_after = (
            self._last_end_ns > 0 and not self.is_within
        )  # and not by a hook, within the pass
        since_ns = now_ns - self._last_end_ns if is_after else 0
        self._updates.append(_Update(self._backward_ns, since_ns))
        self._backward_ns = 0
        self._last_end_ns = now_ns

    def phases(self, ends: Sequence[int]) -> StepPhases | None:
        """Return what is typical of steps; None where there are none.

        Args:
            ends: Numbers of the updates, from 0, that end the steps; the first is that before them.
        """
        steps = [self._updates[before + 1 : end + 1] for before, end in pairwise(ends)]
        if not steps:
            return None
        return StepPhases(
            backward_ns=median(sum(update.backward_ns for update in step) for step in steps),
            optimizer_ns=median(sum(update.optimizer_ns for update in step) for step in steps),
        )

    def _end_backward(self, call: BackwardCall) -> None:
        self._last_end_ns = own_time_ns()
        self._backward_ns += call.duration_ns
