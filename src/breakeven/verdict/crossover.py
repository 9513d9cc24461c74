"""The smallest size from which the GPU wins, from time ratios with their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from breakeven.timing import Source
from breakeven.verdict.report import Crossover, Curve, CurvePoint, NoCrossover, curve_point
from breakeven.verdict.results import DeviceKind, DeviceResult
from breakeven.verdict.size_curve import SizeCurve
from breakeven.verdict.sweep_report import SweepPoint

_WORDS = {"num_parameters": "number of parameters", "num_devices": "number of GPUs"}


def find_crossover(cpu: Curve, gpu: Curve) -> Crossover | NoCrossover:
    """Return the smallest size from which the GPU is faster at all larger sizes searched.

    A `SizeCurve` gives times between measured ones, with a wider interval than measurements. All
    other times are interpolated linearly in the logarithms of size and time. The interval's ends
    are the crossovers at the ends of the ratio's interval. A dip below 1 within the interval,
    between clear wins, is noise: it moves only the crossover's upper end. A tie is no win.

    Args:
        cpu: Times on the CPU.
        gpu: Times on the GPU, along the same axis; sizes may differ.

    Raises:
        ValueError: The axes differ, or a time is not positive or not within its interval.
    """
    if cpu.axis != gpu.axis:
        raise ValueError(f"curves along {cpu.axis} and {gpu.axis} have no crossover")
    axis = cpu.axis
    ratios = _ratios(cpu, gpu)
    if len(ratios) < 2:
        return NoCrossover(
            none_because=f"Fewer than two sizes were searched on both {cpu.device} and "
            f"{gpu.device}.",
            axis=axis,
        )
    searched = (ratios[0].size, ratios[-1].size)
    start = _win_start(ratios, lambda ratio: ratio.value, skipped=_noise_dips(ratios))
    if start == searched[0]:
        below = "" if searched[0] == 1 else "; the crossover, if there is one, is below"
        return NoCrossover(
            none_because=f"{gpu.device} is faster at every {_word(axis)} from {searched[0]:,} to "
            f"{searched[1]:,}{_surely_from(ratios)}{below}.",
            axis=axis,
            faster=DeviceKind.GPU,
            searched=searched,
        )
    if start is None:
        return _no_win(ratios, cpu, gpu, searched)
    low = _win_start(ratios, lambda ratio: ratio.high, skipped=frozenset())
    assert low is not None
    high = _win_start(ratios, lambda ratio: ratio.low, skipped=frozenset())
    return Crossover(
        axis=axis, device=gpu.device, value=start, low=low, high=high, searched=searched
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizedRatio:
    """CPU time over GPU time at one size."""

    size: int
    ratio: LogRatio


def _ratios(cpu: Curve, gpu: Curve) -> list[_SizedRatio]:
    """Return the ratio at each size of either curve within their common range."""
    if not cpu.points or not gpu.points:
        return []
    ours, theirs = _sorted(cpu), _sorted(gpu)
    ours = _filled(ours, [point.size for point in theirs])
    first = max(ours[0].size, theirs[0].size)
    last = min(ours[-1].size, theirs[-1].size)
    sizes = sorted({p.size for p in (*ours, *theirs) if first <= p.size <= last})
    return [
        _SizedRatio(size=size, ratio=log_ratio(_at(ours, size), _at(theirs, size)))
        for size in sizes
    ]


def _filled(points: Sequence[CurvePoint], wanted: Sequence[int]) -> list[CurvePoint]:
    """Return the points, plus wanted sizes and a midpoint between neighbouring measured sizes.

    Without the midpoint, a crossover between two measured sizes would look as certain as the
    measurements.
    """
    measured = {point.size: point.estimate for point in points if point.source is Source.MEASURED}
    filled = list(points)
    for left, right in itertools.pairwise(points):
        if {left.size, right.size} <= measured.keys():
            middle = round(math.sqrt(left.size * right.size))
            between = {size for size in (middle, *wanted) if left.size < size < right.size}
            curve = SizeCurve(measured)
            filled += [curve_point(size, curve.at(size)) for size in between]
    return sorted(filled, key=lambda point: point.size)


def _sorted(curve: Curve) -> list[CurvePoint]:
    points = sorted(curve.points, key=lambda point: point.size)
    if points[0].size < 1 or any(a.size == b.size for a, b in itertools.pairwise(points)):
        raise ValueError(f"sizes of the curve of {curve.device} must be positive and distinct")
    return points


def _at(points: Sequence[CurvePoint], size: int) -> CurvePoint:
    """Return the point at ``size``, interpolated in logarithms if ``points`` has none."""
    for left, right in itertools.pairwise(points):
        if left.size < size < right.size:
            share = math.log(size / left.size) / math.log(right.size / left.size)

            def between(one: float, other: float, share: float = share) -> float:
                return one ** (1 - share) * other**share

            return CurvePoint(
                size=size,
                step_ns=between(left.step_ns, right.step_ns),
                low_ns=between(left.low_ns, right.low_ns),
                high_ns=between(left.high_ns, right.high_ns),
                source=Source.PREDICTED,
            )
    return next(point for point in points if point.size == size)


def _noise_dips(ratios: Sequence[_SizedRatio]) -> frozenset[int]:
    """Return the positions of apparent GPU losses that are only noise between clear wins."""
    dips: set[int] = set()
    position = 0
    while position < len(ratios):
        end = position
        while end < len(ratios) and not ratios[end].ratio.is_won:
            end += 1
        run = range(position, end)
        is_between_wins = position > 0 and end < len(ratios)
        if is_between_wins and not any(ratios[i].ratio.is_lost for i in run):
            dips.update(run)
        position = end + 1
    return frozenset(dips)


def _win_start(
    ratios: Sequence[_SizedRatio],
    value: Callable[[LogRatio], float],
    *,
    skipped: frozenset[int],
) -> int | None:
    """Return the size from which ``value`` stays positive; None if it ends at or below 0."""
    lost = [i for i, sized in enumerate(ratios) if value(sized.ratio) <= 0 and i not in skipped]
    if not lost:
        return ratios[0].size
    if lost[-1] == len(ratios) - 1:
        return None
    left, right = ratios[lost[-1]], ratios[lost[-1] + 1]
    below, above = value(left.ratio), value(right.ratio)
    # A skipped dip has a clear win before it, so it never follows a loss.
    assert above > 0
    share = -below / (above - below)
    root = left.size * (right.size / left.size) ** share
    return min(math.floor(root) + 1, right.size)


def _surely_from(ratios: Sequence[_SizedRatio]) -> str:
    """Say from which size the win is beyond the interval, unless it is from the first size on."""
    start = _win_start(ratios, lambda ratio: ratio.low, skipped=frozenset())
    if start is None:
        return ", though not everywhere by more than the intervals"
    return "" if start == ratios[0].size else f", clearly so from {start:,} on"


def _no_win(
    ratios: Sequence[_SizedRatio], cpu: Curve, gpu: Curve, searched: tuple[int, int]
) -> NoCrossover:
    sizes = f"{_word(cpu.axis)} from {searched[0]:,} to {searched[1]:,}"
    if any(sized.ratio.value > 0 for sized in ratios):
        won = [sized.size for sized in ratios if sized.ratio.value > 0]
        return NoCrossover(
            none_because=f"{gpu.device} is faster at {won[0]:,} but not at {searched[1]:,}, the "
            f"largest {_word(cpu.axis)} searched; check a larger one.",
            axis=cpu.axis,
            searched=searched,
        )
    if any(not sized.ratio.is_lost for sized in ratios):
        remark = "though not everywhere by more than the intervals; measure to be sure"
    else:
        remark = "and clearly so"
    return NoCrossover(
        none_because=f"{gpu.device} is not faster than {cpu.device} at any {sizes}, {remark}.",
        axis=cpu.axis,
        faster=DeviceKind.CPU,
        searched=searched,
    )


def _word(axis: str) -> str:
    return _WORDS.get(axis, axis.replace("_", " "))


Timed = DeviceResult | CurvePoint | SweepPoint
"""A step time with its 90 % interval."""

_Timed = TypeVar("_Timed", DeviceResult, CurvePoint)


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
    """Return ln(time of ``over`` / time of ``device``): positive if ``device`` is faster.

    Errors of the two times are independent, so their logarithmic widths add in quadrature.

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


def rescaled(time: _Timed, *, factor: float) -> _Timed:
    """Return a result or a point with its time and interval multiplied by ``factor``."""
    return replace(
        time,
        step_ns=time.step_ns * factor,
        low_ns=time.low_ns * factor,
        high_ns=time.high_ns * factor,
    )
