"""A figure with its 90 % interval."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import msgspec

_NORMAL = NormalDist()


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its 90 % interval; its unit is in the name of the field that holds it.

    Args:
        value: The figure.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def map(self, change: Callable[[float], float]) -> Interval:
        """Return the interval of a growing function of the figure."""
        return Interval(value=change(self.value), low=change(self.low), high=change(self.high))

    def plus(self, other: Interval) -> Interval:
        """Return the sum of two figures that err in the same direction, the widest case."""
        return Interval(
            value=self.value + other.value, low=self.low + other.low, high=self.high + other.high
        )

    def times(self, factor: float) -> Interval:
        """Return a multiple of the figure."""
        return self.map(lambda one: factor * one)

    def at(self, quantile: float) -> float:
        """Return a quantile of the figure, which must be positive: log-normal on either side."""
        deviations = _NORMAL.inv_cdf(quantile) / _NORMAL.inv_cdf(0.95)
        end = self.high if deviations > 0 else self.low
        return self.value * (end / self.value) ** abs(deviations)
