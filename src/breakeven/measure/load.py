"""How busy the machine is with other work while something is measured."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from breakeven.memory import num_page_faults

_STATISTICS = Path("/proc/stat")


class OtherLoad:
    """The share of the machine's processors that other processes use, from creation on.

    Linux alone tells; elsewhere the share is 0.

    Args:
        counts_group: Take the processes of this one's group for its own, such as the workers of a
            loader. To look at them takes some milliseconds, so that this is not for pauses.
    """

    def __init__(self, *, counts_group: bool = False) -> None:
        self._counts_group = counts_group
        self._start = self._times_s()
        # Of the time before a pause: all processors busy, busy for this process, and in all.
        self._counted_s = (0.0, 0.0, 0.0)

    def pause(self) -> None:
        """Count nothing from now on."""
        self._counted_s = self._counted()
        self._start = None

    def resume(self) -> None:
        """Count again."""
        self._start = self._times_s()

    def fraction(self) -> float:
        """Return the share of all processors' time, 0 to 1, that went to other processes."""
        busy_s, own_s, total_s = self._counted()
        return min(1.0, max(0.0, (busy_s - own_s) / total_s)) if total_s > 0 else 0.0

    def _counted(self) -> tuple[float, float, float]:
        if self._start is None or (end := self._times_s()) is None:
            return self._counted_s
        busy_s, own_s, total_s = (
            counted + after - before
            for counted, before, after in zip(self._counted_s, self._start, end, strict=True)
        )
        return busy_s, own_s, total_s

    def _times_s(self) -> tuple[float, float, float] | None:
        """Return the seconds of all processors: busy, busy for this process, and in all."""
        try:
            fields = _STATISTICS.read_text().splitlines()[0].split()[1:]
        except (OSError, IndexError):
            return None
        # user nice system idle iowait irq softirq steal; guest time is part of user time.
        # Source: proc(5), /proc/stat.
        times = [int(field) / _ticks_per_s() for field in fields[:8]]
        total_s = sum(times)
        busy_s = total_s - times[3] - times[4]
        own = os.times()
        own_s = own.user + own.system + own.children_user + own.children_system
        return busy_s, own_s + (_others_of_group_s() if self._counts_group else 0.0), total_s


def _others_of_group_s() -> float:
    """Return the seconds of the living processes of this one's group, without itself."""
    group, own, ticks = str(os.getpgrp()), str(os.getpid()), 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces: state, parent and group follow it, and
            # user and system time are the 12th and 13th field after it.
            # Source: proc(5), /proc/pid/stat.
            fields = status.read_text().rpartition(")")[2].split()
            if fields[2] == group and status.parent.name != own:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _ticks_per_s()


def _ticks_per_s() -> int:
    """Return the unit of the files above, which Linux alone has."""
    return os.sysconf("SC_CLK_TCK")


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
