"""A chart as values, which every renderer draws, and the styles that its series are told apart by.

Series differ by colour, by dashes and by marker, so by two where there is no colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from breakeven.timing import Source
from breakeven.verdict import DeviceKind

# Values that span less than this are told apart better on a linear axis that begins at 0.
_LOG_SPAN = 8.0
_MIN_LOG_TICKS = 3
_MAX_TICKS = 9
_MAX_SIZE_TICKS = 12
_FEWEST_STEPS = 6
_FAR_FROM_ZERO = 0.8
_LEAST_SPAN = 1e-9
# Figures beyond these are damage; they may not make the arithmetic of an axis overflow.
_LARGEST = 1e60
_SMALLEST = 1e-60
# Room between the outermost value and the frame, as a share of the axis.
_MARGIN = 0.03


class Scale(StrEnum):
    """How a value becomes a position."""

    LINEAR = "linear"
    LOG = "log"
    CATEGORY = "category"
    """Values are the numbers 0, 1, 2, ... of the ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A value that is written at an axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """One axis, from its low to its high end.

    Args:
        label: What is on it, with the unit where the ticks do not tell.
        scale: How values are spread.
        low: Value at the low end.
        high: Value at the high end; above ``low``.
        ticks: Values that are written, ascending.
    """

    label: str
    scale: Scale
    low: float
    high: float
    ticks: tuple[Tick, ...]

    def position(self, value: float) -> float:
        """Return where ``value`` lies: 0 at the low end, 1 at the high end, clipped to both."""
        if self.scale is Scale.LOG:
            if value <= self.low:
                return 0.0
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A step time with its 90 % interval.

    Args:
        x: Value on the horizontal axis.
        row: Which of the chart's ``x_labels`` it belongs to.
        step_ns: Time of one step.
        low_ns: Lower end of its interval.
        high_ns: Upper end.
        source: Measured or predicted.
        is_too_big: Whether the step does not fit the device's memory.
    """

    x: float
    row: int
    step_ns: float
    low_ns: float
    high_ns: float
    source: Source
    is_too_big: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One device.

    Args:
        name: As the legend names it.
        kind: CPU or GPU.
        style: Which of the styles it is drawn in.
        points: By ``x``, at most one for each.
    """

    name: str
    kind: DeviceKind
    style: int
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverMark:
    """From where on a GPU wins.

    Args:
        name: The GPU.
        style: That of its series.
        x: Where it wins from.
        low: Lower end of the interval.
        high: Upper end; ``None`` where the interval reaches past what was searched.
        label: The same in words.
    """

    name: str
    style: int
    x: float
    low: float
    high: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Step times of devices along one axis.

    Args:
        title: What is shown.
        note: What is held, and what else a reader must know; may be empty.
        x: The axis along which the devices are compared.
        y: Time of one step.
        x_labels: Each ``x`` that has a point, in words, ascending.
        series: One per device.
        crossovers: Where GPUs begin to win.
        is_by_device: Whether each series is one point, with its own place on ``x``.
    """

    title: str
    note: str
    x: ChartAxis
    y: ChartAxis
    x_labels: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    crossovers: tuple[CrossoverMark, ...] = ()
    is_by_device: bool = False


def value_axis(label: str, values: Iterable[float], as_text: Callable[[float], str]) -> ChartAxis:
    """Return an axis that holds all values: logarithmic where they span enough.

    Args:
        label: What is on the axis.
        values: At least one, none of them infinite.
        as_text: How a value is written.
    """
    every = sorted({_within_limits(value) for value in values})
    low, high = every[0], every[-1]
    if low > 0 and high / low >= _LOG_SPAN:
        return _log_axis(label, every, as_text)
    # From 0, unless the values are far from it, as the years of a calendar are.
    starts_at_zero = 0 <= low <= _FAR_FROM_ZERO * high
    span = high if starts_at_zero else high - low
    # Of values that are all but equal, the ticks are numbers that can be told apart.
    span = max(span, _LEAST_SPAN * abs(high)) if low < high else abs(high) or 1.0
    step = _nice_step(span / _FEWEST_STEPS)
    first = 0.0 if starts_at_zero else math.floor(low / step) * step
    num_steps = max(math.ceil((high - first) * (1 + _MARGIN) / step), 1)
    ticks = tuple(
        Tick(value=first + i * step, label=as_text(first + i * step)) for i in range(num_steps + 1)
    )
    return ChartAxis(label=label, scale=Scale.LINEAR, low=first, high=ticks[-1].value, ticks=ticks)


def size_axis(label: str, values: Iterable[float], as_text: Callable[[float], str]) -> ChartAxis:
    """Return an axis of what was chosen: of few values on a linear scale, each is a tick.

    Args:
        label: What is on the axis.
        values: At least one, none of them infinite.
        as_text: How a value is written.
    """
    every = sorted({_within_limits(value) for value in values})
    axis = value_axis(label, every, as_text)
    if axis.scale is Scale.LOG:
        return axis
    # Sizes have no natural zero, as times have.
    margin = _MARGIN * (every[-1] - every[0]) or 0.5
    low, high = every[0] - margin, every[-1] + margin
    if len(every) <= _MAX_SIZE_TICKS:
        ticks = tuple(Tick(value=value, label=as_text(value)) for value in every)
    else:
        ticks = tuple(tick for tick in axis.ticks if low <= tick.value <= high)
    return ChartAxis(label=label, scale=Scale.LINEAR, low=low, high=high, ticks=ticks)


def category_axis(label: str, names: Sequence[str]) -> ChartAxis:
    """Return an axis of names side by side."""
    return ChartAxis(
        label=label,
        scale=Scale.CATEGORY,
        low=-0.5,
        high=len(names) - 0.5,
        ticks=tuple(Tick(value=float(i), label=name) for i, name in enumerate(names)),
    )


def _within_limits(value: float) -> float:
    if abs(value) < _SMALLEST:
        return 0.0
    return math.copysign(min(abs(value), _LARGEST), value)


def _log_axis(label: str, every: list[float], as_text: Callable[[float], str]) -> ChartAxis:
    stretch = (every[-1] / every[0]) ** _MARGIN
    low, high = every[0] / stretch, every[-1] * stretch
    ticks = tuple(Tick(value=value, label=as_text(value)) for value in _log_ticks(low, high, every))
    return ChartAxis(label=label, scale=Scale.LOG, low=low, high=high, ticks=ticks)


def _log_ticks(low: float, high: float, every: list[float]) -> list[float]:
    if all(value >= 1 and math.log2(value).is_integer() for value in every):
        powers = [2.0**i for i in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
        return _thinned(powers)
    for leading in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [
            digit * 10.0**decade
            for decade in decades
            for digit in leading
            if low <= digit * 10.0**decade <= high
        ]
        if len(ticks) >= _MIN_LOG_TICKS:
            return _thinned(ticks)
    return ticks


def _thinned(ticks: list[float]) -> list[float]:
    return ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]


def _nice_step(rough: float) -> float:
    """Return the next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= rough)


PAPER_LIGHT = "#ffffff"
PAPER_DARK = "#15181d"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """One way to draw a series.

    Args:
        light: Colour on ``PAPER_LIGHT``, at a contrast of 3 or more.
        dark: Colour on ``PAPER_DARK``, the same.
        dashes: Lengths of dash and gap in points; none for a solid line.
        marker: Its name in matplotlib.
        path: The marker as an SVG path around (0, 0), about 9 units wide.
    """

    light: str
    dark: str
    dashes: tuple[float, ...]
    marker: str
    path: str


# Okabe and Ito's colours, which people with any colour vision can tell apart, darkened or
# lightened where one would be too faint on its paper. The number of dashes and markers has no
# common divisor with that of colours, so that the pattern begins to repeat late.
_COLOURS = (
    ("#1f2328", "#f0f3f6"),
    ("#0072b2", "#56b4e9"),
    ("#c04c00", "#f39a4d"),
    ("#00785a", "#2fc79a"),
    ("#a8467f", "#e58fc0"),
    ("#8a6100", "#f0e442"),
    ("#6a4fc4", "#b9a8ff"),
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (7.0, 3.0), (2.0, 2.5), (9.0, 3.0, 2.0, 3.0))
_MARKERS = (
    ("o", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z"),
    ("s", "M-3.5,-3.5h7v7h-7z"),
    ("^", "M0,-4.6L4.4,3.4H-4.4z"),
    ("D", "M0,-4.8L4.8,0L0,4.8L-4.8,0z"),
    ("v", "M0,4.6L4.4,-3.4H-4.4z"),
)
NUM_COLOURS = len(_COLOURS)


def style_of(number: int) -> SeriesStyle:
    """Return the style of the series with a number, counted from 0.

    Where there are more series than colours, colours come again with other dashes and markers.
    """
    light, dark = _COLOURS[number % len(_COLOURS)]
    marker, path = _MARKERS[number % len(_MARKERS)]
    return SeriesStyle(
        light=light, dark=dark, dashes=_DASHES[number % len(_DASHES)], marker=marker, path=path
    )


def colours(*, is_dark: bool) -> tuple[str, ...]:
    """Return the colours in turn, for light or for dark paper."""
    return tuple(pair[1 if is_dark else 0] for pair in _COLOURS)
