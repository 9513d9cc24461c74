"""A time with an interval, and where it comes from."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Source(StrEnum):
    """How a figure came about. A prediction is never called a measurement."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A duration with its 90 % interval, in nanoseconds."""

    value_ns: float
    low_ns: float
    high_ns: float
    source: Source
