"""Estimates the time of a step at sizes that were not measured.

A step takes a fixed time, for launches and updates, plus a time per sample. So between two measured
sizes its time is linear in the size (not in its logarithm), and beyond them the line is extended.
Real steps deviate if the working set leaves a cache, a library picks another algorithm, or another
thread joins: the intervals cover these.

Widths are differences of natural logarithms of times.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from breakeven.timing import Estimate, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSpread:
    """The deviation of unmeasured times from the lines, in 90 % of cases.

    Pairs hold the lower and the upper width, for a factor of e from the nearest measured size.
    Widths grow with the square root of the logarithm of that factor, like the sum of independent
    errors at each size in between.

    Args:
        repeat: Width of the difference between measurements in two processes; above 0.
        between: Between two measured sizes.
        larger: Beyond the largest.
        smaller: Beyond the smallest.

    Source: ``repeat`` is the minimum spread of a measurement; the rates leave 5 % of the times
    outside on either side, on the curves of ``benchmarks/data/cpu_sizes_*.csv``
    (``python benchmarks/cpu_sizes.py report``).
    """

    repeat: float = 0.1
    between: tuple[float, float] = (0.21, 0.13)
    larger: tuple[float, float] = (0.11, 0.46)
    smaller: tuple[float, float] = (0.37, 0.36)


# Limits on the share of the nearest time that grows with the size, for sizes beyond the measured
# ones. Even a step that seems constant has samples to compute. A step that grows faster than its
# size is leaving a cache or starting to request memory from the system, and that growth ends. Some
# of a step is always fixed.
_LEAST_SHARE = 0.1
_MOST_SHARE = 1.0
_MOST_SHARE_BELOW = 0.95
# The share is the mean over this many neighbours.
_NUM_NEIGHBOURS = 2
# Minimum uncertainty of a share found that way.
_SHARE_WIDTH = 0.1


class SizeCurve:
    """Step times at any size, from a few measured sizes.

    The time never falls as the size grows, unless measured times fall beyond their intervals:
    libraries pick another algorithm for another size. A fall within the intervals is noise:
    estimates then use the mean of those times.

    Args:
        measured: The measured sizes, at least one, with their times.
        spread: Uncertainty between and beyond the measured sizes.

    Raises:
        ValueError: There is no size, one is below 1, or a time is not positive or not within its
            interval.
    """

    def __init__(self, measured: Mapping[int, Estimate], spread: SizeSpread | None = None) -> None:
        if not measured:
            raise ValueError("a curve needs at least one measured size")
        for size, time in measured.items():
            if size < 1 or not 0 < time.low_ns <= time.value_ns <= time.high_ns:
                raise ValueError(f"size {size} with a step of {time}")
        self._measured = dict(measured)
        self._spread = spread or SizeSpread()
        self._sizes = sorted(measured)
        times = [measured[size] for size in self._sizes]
        widths = [
            (
                math.hypot(math.log(time.value_ns / time.low_ns), self._spread.repeat),
                math.hypot(math.log(time.high_ns / time.value_ns), self._spread.repeat),
            )
            for time in times
        ]
        values = [math.log(time.value_ns) for time in times]
        fitted = _isotonic(values, widths)
        self._knots = [
            _Knot(
                size=size,
                log_time=log_time,
                low=low + max(log_time - value, 0.0),
                high=high + max(value - log_time, 0.0),
            )
            for size, value, log_time, (low, high) in zip(
                self._sizes, values, fitted, widths, strict=True
            )
        ]

    def at(self, size: int) -> Estimate:
        """Return the time at ``size`` with its 90 % interval; the measured one if there is one.

        Raises:
            ValueError: The size is below 1.
        """
        if size < 1:
            raise ValueError(f"a size of {size}")
        if size in self._measured:
            return self._measured[size]
        position = bisect(self._sizes, size)
        if position == 0:
            return self._beyond(size, self._knots[0], self._knots[1 : 1 + _NUM_NEIGHBOURS])
        if position == len(self._sizes):
            neighbours = self._knots[-2 : -2 - _NUM_NEIGHBOURS : -1]
            return self._beyond(size, self._knots[-1], neighbours)
        return self._between(size, self._knots[position - 1], self._knots[position])

    def _between(self, size: int, left: _Knot, right: _Knot) -> Estimate:
        share = (size - left.size) / (right.size - left.size)
        log_share = math.log(size / left.size) / math.log(right.size / left.size)
        line = math.log((1 - share) * left.time_ns + share * right.time_ns)
        # If the time grows faster than the size, more samples alone cannot be the cause, and the
        # size of the change is unknown: interpolate linearly in logarithms.
        power = (1 - log_share) * left.log_time + log_share * right.log_time
        log_time = min(line, power)
        distance = math.sqrt(min(math.log(size / left.size), math.log(right.size / size)))
        faster, slower = (rate * distance for rate in self._spread.between)
        # Time does not fall with the size, so the two measured times bound it.
        least, most = sorted((left.log_time, right.log_time))
        low = math.hypot(
            (1 - log_share) * left.low + log_share * right.low, min(faster, log_time - least)
        )
        high = math.hypot(
            (1 - log_share) * left.high + log_share * right.high, min(slower, most - log_time)
        )
        return _predicted(log_time, low, high)

    def _beyond(self, size: int, end: _Knot, neighbours: Sequence[_Knot]) -> Estimate:
        """Return the time at a size beyond the largest or the smallest measured one."""
        growth, is_above = size / end.size, size > end.size
        share = _share(end, neighbours) if neighbours else None
        if is_above:
            share = (share or _UNKNOWN_ABOVE).within(_LEAST_SHARE, _MOST_SHARE)
        else:
            share = (share or _UNKNOWN_BELOW).within(0.0, _MOST_SHARE_BELOW)
        parts = (share.low, share.value, share.high)
        one, value, other = (math.log1p(part * (growth - 1)) for part in parts)
        least, most = sorted((one, other))
        rates = self._spread.larger if is_above else self._spread.smaller
        faster, slower = (rate * math.sqrt(abs(math.log(growth))) for rate in rates)
        low = math.hypot(end.low, faster, value - least)
        high = math.hypot(end.high, slower, most - value)
        # Time does not fall with the size here either.
        if is_above:
            low = min(low, end.low + value)
        else:
            high = min(high, end.high - value)
        return _predicted(end.log_time + value, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knot:
    """A measured size, its fitted time, and the widths of the interval on both sides."""

    size: int
    log_time: float
    low: float
    high: float

    @property
    def time_ns(self) -> float:
        return math.exp(self.log_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The share of a step's time that grows with the size, with its interval."""

    low: float
    value: float
    high: float

    def within(self, least: float, most: float) -> _Share:
        """Return the share: value clipped to ``least``..``most``, interval to 0..``most``."""
        return _Share(
            low=min(max(self.low, 0.0), most),
            value=min(max(self.value, least), most),
            high=min(max(self.high, least), most),
        )


# With a single measured size, the share may be anything. As sizes grow, the overhead of a step
# mostly becomes negligible; as they shrink, it dominates. These values leave no bias on the curves
# of the calibration.
_UNKNOWN_ABOVE = _Share(low=0.0, value=0.7, high=_MOST_SHARE)
_UNKNOWN_BELOW = _Share(low=0.0, value=0.88, high=_MOST_SHARE_BELOW)


def _share(end: _Knot, neighbours: Sequence[_Knot]) -> _Share:
    """Return the share of the time at ``end`` that grows with the size, nearest neighbour first."""
    shares = [
        (end.time_ns - other.time_ns) / (end.size - other.size) * end.size / end.time_ns
        for other in neighbours
    ]
    # Errors of the two times carry over to the share, more so the closer the sizes are.
    nearest = neighbours[0]
    leverage = end.size / abs(end.size - nearest.size) * nearest.time_ns / end.time_ns
    error = leverage * math.hypot(end.low + end.high, nearest.low + nearest.high) / 2
    value = fmean(shares)
    width = math.hypot(_SHARE_WIDTH, error)
    return _Share(low=value - width, value=value, high=value + width)


def _predicted(log_time: float, low: float, high: float) -> Estimate:
    value_ns = math.exp(log_time)
    return Estimate(
        value_ns=value_ns,
        low_ns=min(math.exp(log_time - low), value_ns),
        high_ns=max(math.exp(log_time + high), value_ns),
        source=Source.PREDICTED,
    )


def _isotonic(values: Sequence[float], widths: Sequence[tuple[float, float]]) -> list[float]:
    """Return logarithms of times, with falls within the lower and upper widths removed."""
    weights = [1 / (low + high) ** 2 for low, high in widths]
    falls = [
        position + 1
        for position, (before, after) in enumerate(itertools.pairwise(values))
        if before - after > math.hypot(widths[position][0], widths[position + 1][1])
    ]
    fitted: list[float] = []
    for start, end in itertools.pairwise([0, *falls, len(values)]):
        fitted += _rising(values[start:end], weights[start:end])
    return fitted


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values nearest to ``values``, in weighted least squares.

    Source: pool adjacent violators; R. E. Barlow et al., "Statistical Inference under Order
    Restrictions", 1972, section 1.2.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before_mean, before_total, before_count = blocks.pop()
            mean = (mean * total + before_mean * before_total) / (total + before_total)
            total, count = total + before_total, count + before_count
        blocks.append((mean, total, count))
    return list(itertools.chain.from_iterable([mean] * count for mean, _, count in blocks))
