"""What a sweep tells while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from breakeven.progress import Progress, SilentProgress
from breakeven.verdict import SweepPoint


class SweepProgress(Progress, Protocol):
    """Receives the stages of a sweep, and the points of its grid as they are done."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Take what is known of points of the grid from now on.

        Args:
            points: All devices at one or more points of the grid that are done; none where the
                script failed there.
            num_done: Points of the grid that are done, these included.
            num_points: Points of the whole grid.
        """
        ...


class SilentSweepProgress(SilentProgress):
    """Tells nothing."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Ignore the points."""
