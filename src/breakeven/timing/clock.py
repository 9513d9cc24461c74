"""Time is injected: whoever measures is given a clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A monotonic clock of the host that can also wait for the device."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        ...
