"""Times that each have an interval: their ratio, and what they become."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec.structs import replace

from breakeven.verdict.report import CurvePoint, DeviceResult

_Timed = TypeVar("_Timed", DeviceResult, CurvePoint)


class Timed(Protocol):
    """A step time with its 90 % interval: a result, or a point of a curve."""

    @property
    def step_ns(self) -> float:
        """Time of one step."""
        ...

    @property
    def low_ns(self) -> float:
        """Lower end of its interval."""
        ...

    @property
    def high_ns(self) -> float:
        """Upper end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRatio:
    """Logarithm of a ratio of times with its 90 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_won(self) -> bool:
        """Return whether the ratio is above 1 beyond its interval."""
        return self.low > 0

    @property
    def is_lost(self) -> bool:
        """Return whether the ratio is below 1 beyond its interval."""
        return self.high < 0


def log_ratio(over: Timed, device: Timed) -> LogRatio:
    """Return ln(time of ``over`` / time of ``device``): positive where ``device`` is faster.

    Errors of the two times are independent, so their distances on a logarithmic scale add in
    squares.

    Raises:
        ValueError: A time is not positive, or not within its interval.
    """
    for time in (over, device):
        if not 0 < time.low_ns <= time.step_ns <= time.high_ns:
            raise ValueError(
                f"a step of {time.step_ns} ns with interval {time.low_ns} to {time.high_ns} ns"
            )
    value = math.log(over.step_ns / device.step_ns)
    faster = (math.log(over.high_ns / over.step_ns), math.log(device.step_ns / device.low_ns))
    slower = (math.log(over.step_ns / over.low_ns), math.log(device.high_ns / device.step_ns))
    return LogRatio(value=value, low=value - math.hypot(*slower), high=value + math.hypot(*faster))


def rescaled(time: _Timed, *, factor: float = 1.0, added_ns: float = 0.0) -> _Timed:
    """Return a result or a point whose time and ends of the interval are changed alike."""
    return replace(
        time,
        step_ns=time.step_ns * factor + added_ns,
        low_ns=time.low_ns * factor + added_ns,
        high_ns=time.high_ns * factor + added_ns,
    )
