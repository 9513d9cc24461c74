"""The many runs of a system, as details of one stage."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.check import Progress
from breakeven.verdict import SweepPoint

# What is left of a line of 80 characters beside the clock and the stage is not much.
_LABEL_CHARACTERS = 26


class BenchProgress:
    """Tells stages as details, so that dozens of runs do not fill the terminal.

    Args:
        outer: Shows the stage of the whole system.
        label: What is run.
    """

    def __init__(self, outer: Progress, label: str) -> None:
        self._outer = outer
        # The last arguments are those that differ from run to run.
        is_long = len(label) > _LABEL_CHARACTERS
        self._label = f"…{label[1 - _LABEL_CHARACTERS :]}" if is_long else label
        self._stage = ""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Tell what is done now; how long is left is that of the whole system."""
        self._stage = stage
        self._outer.detail(f"{self._label}: {stage}")

    def detail(self, text: str) -> None:
        """Tell what happens within it."""
        self._outer.detail(f"{self._label}: {self._stage}, {text}")

    def end(self) -> None:
        """End nothing: the stage of the whole system goes on."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Tell how many points of a sweep are done."""
        self._outer.detail(f"{self._label}: {num_done} of {num_points} points")
