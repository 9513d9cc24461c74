"""The progress of long work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Progress(Protocol):
    """Receives stages of long work: the command line draws them, a library call ignores them."""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Start a stage, such as "measuring the step on this CPU".

        Args:
            stage: The work of this stage, for a person.
            expected_s: Longest time expected, in seconds, if known.
        """
        ...

    def detail(self, text: str) -> None:
        """Say what happens within the stage, such as "step 17, 2.1 ms"."""
        ...

    def end(self) -> None:
        """End the last stage."""
        ...


class SilentProgress:
    """Shows nothing."""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Ignore the stage."""

    def detail(self, text: str) -> None:
        """Ignore the detail."""

    def end(self) -> None:
        """Ignore the end."""

    def finished(self, points: Sequence[object], num_done: int, num_points: int) -> None:
        """Ignore the points of a sweep."""
