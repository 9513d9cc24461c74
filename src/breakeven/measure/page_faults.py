"""How many pages of memory a step gets from the operating system, each of them zeroed first."""

from __future__ import annotations

from breakeven.memory import num_page_faults


class PageFaults:
    """Counts the pages of this process, from step to step.

    It looks rarely, after 1, 2, 4, 8, ... steps, so that short steps are not made longer.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []

    def mark(self, num_steps: int) -> None:
        """Note that so many steps are done.

        Args:
            num_steps: At least 1.
        """
        if num_steps & (num_steps - 1) == 0:
            self._marks.append((num_steps, num_page_faults()))

    def per_step(self, num_steps: int) -> float:
        """Return the pages per step of the later half of the run; 0 where that has no step.

        Args:
            num_steps: How many are done by now.
        """
        early = [mark for mark in self._marks if 2 * mark[0] <= num_steps]
        if not early:
            return 0.0
        before, faults = early[-1]
        return (num_page_faults() - faults) / (num_steps - before)
