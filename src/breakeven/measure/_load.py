"""How busy the machine is with other work while something is measured."""

from __future__ import annotations

import os
from pathlib import Path

_STATISTICS = Path("/proc/stat")


class OtherLoad:
    """The share of the machine's processors that other processes use, from creation on.

    Linux alone tells; elsewhere the share is 0.
    """

    def __init__(self) -> None:
        self._start = _times_s()
        # Of the time before a pause: all processors busy, busy for this process, and in all.
        self._counted_s = (0.0, 0.0, 0.0)

    def pause(self) -> None:
        """Count nothing from now on."""
        self._counted_s = self._counted()
        self._start = None

    def resume(self) -> None:
        """Count again."""
        self._start = _times_s()

    def fraction(self) -> float:
        """Return the share of all processors' time, 0 to 1, that went to other processes."""
        busy_s, own_s, total_s = self._counted()
        return min(1.0, max(0.0, (busy_s - own_s) / total_s)) if total_s > 0 else 0.0

    def _counted(self) -> tuple[float, float, float]:
        if self._start is None or (end := _times_s()) is None:
            return self._counted_s
        busy_s, own_s, total_s = (
            counted + after - before
            for counted, before, after in zip(self._counted_s, self._start, end, strict=True)
        )
        return busy_s, own_s, total_s


def _times_s() -> tuple[float, float, float] | None:
    """Return the seconds of all processors: busy, busy for this process, and in all."""
    try:
        fields = _STATISTICS.read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal; guest time is part of user time.
    # Source: proc(5), /proc/stat.
    times = [int(field) / ticks_per_s for field in fields[:8]]
    total_s = sum(times)
    busy_s = total_s - times[3] - times[4]
    own = os.times()
    return busy_s, own.user + own.system + own.children_user + own.children_system, total_s
