"""A chart as values: axes, points, crossovers, and the styles of series.

Series differ by colour, dashes and marker, so two differences remain without colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from breakeven.report.text import listed, printable, ratio_alone
from breakeven.timing import Source
from breakeven.units import format_count, format_digits
from breakeven.verdict import NUM_PARAMETERS, AxisValue, Crossover

# Values within a smaller ratio are easier to distinguish on a linear axis from 0.
_LOG_SPAN = 8.0
_MIN_LOG_TICKS = 3
_MAX_TICKS = 9
_MAX_SIZE_TICKS = 12
_FEWEST_STEPS = 6
_FAR_FROM_ZERO = 0.8
_LEAST_SPAN = 1e-9
# Figures beyond these limits are corrupt; clip them so that an axis does not overflow.
_SMALLEST, _LARGEST = 1e-60, 1e60
# Margin between the outermost value and the frame, as a share of the axis.
_MARGIN = 0.03
# A shorter axis of speeds would exaggerate small differences.
_LEAST_SPEEDS = (0.5, 2.0)
# Round counts from here on get a prefix: 10k, 100k, 1M.
_LONG_COUNT = 10_000
_AXIS_WORDS = {NUM_PARAMETERS: "parameters", "num_devices": "number of GPUs"}


class Scale(StrEnum):
    """The mapping from a value to a position."""

    LINEAR = "linear"
    LOG = "log"
    CATEGORY = "category"
    """Values are the numbers 0, 1, 2, ... of the ticks."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled value on an axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """One axis, from its low to its high end.

    Args:
        label: Its quantity, with the unit if the ticks have none.
        scale: Mapping of values to positions.
        low: Value at the low end.
        high: Value at the high end; above ``low``.
        ticks: Labelled values, ascending.
        as_text: Formats a value, for other ticks.
    """

    label: str
    scale: Scale
    low: float
    high: float
    ticks: tuple[Tick, ...]
    as_text: Callable[[float], str] = str

    def position(self, value: float) -> float:
        """Return the position of ``value``, from 0 (low end) to 1 (high end), clipped to both."""
        if self.scale is Scale.LOG:
            if value <= self.low:
                return 0.0
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A value with its 90 % interval.

    Args:
        x: Value on the horizontal axis.
        row: Index of its value in the chart's ``x_labels``.
        value: Value on the vertical axis.
        low: Lower end of its interval.
        high: Upper end.
        step_ns: Time that it stands for.
        text: The same for a reader, with the interval.
        source: Measured or predicted.
        is_too_big: Whether the step exceeds the device's memory: it is marked below the curves.
        has_value: Whether it has a value at all.
    """

    x: float
    row: int
    value: float
    low: float
    high: float
    step_ns: float
    text: str
    source: Source
    is_too_big: bool = False
    has_value: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """The points of one device.

    Args:
        name: Name in the legend.
        style: Number of its style.
        points: Points by ``x``, at most one for each.
        remark: Why it is shown, for the legend.
        is_extra: Whether it is drawn on request only.
    """

    name: str
    style: int
    points: tuple[ChartPoint, ...]
    remark: str = ""
    is_extra: bool = False

    @property
    def curve(self) -> tuple[ChartPoint, ...]:
        """The points that have a value and fit the device's memory."""
        return tuple(one for one in self.points if one.has_value and not one.is_too_big)

    @property
    def too_big(self) -> tuple[ChartPoint, ...]:
        """The points that exceed the device's memory."""
        return tuple(one for one in self.points if one.is_too_big)

    @property
    def label(self) -> str:
        """The name with the remark."""
        return f"{self.name} ({self.remark})" if self.remark else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverMark:
    """The value from which a GPU wins.

    Args:
        style: Style number of its series.
        x: The value.
        low: Lower end of the interval.
        high: Upper end; ``None`` if it is beyond the searched range.
        label: The same in words.
        short_label: The same without the interval.
    """

    style: int
    x: float
    low: float
    high: float | None
    label: str
    short_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Values of devices along one axis.

    Args:
        title: Title of the chart.
        note: Held settings and other remarks for the reader; may be empty.
        x: The axis along which the devices are compared.
        y: The compared quantity.
        x_labels: Label of each ``x`` that has a point, ascending.
        series: One per device.
        rival: Name of what has the value 1, drawn as a bold line; empty for none.
        crossovers: The values from which GPUs win.
        is_by_device: Whether each series is a single point, with its own place on ``x``.
    """

    title: str
    note: str
    x: ChartAxis
    y: ChartAxis
    x_labels: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    rival: str = ""
    crossovers: tuple[CrossoverMark, ...] = ()
    is_by_device: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no device has a value, so that there is nothing to draw."""
        return not any(one.curve for one in self.series)

    @property
    def too_big_for(self) -> str:
        """The devices whose memory some sizes exceed, for readers without colour; may be empty."""
        names = [one.name for one in self.series if one.too_big]
        return f"too big for {listed(names, 3)}" if names else ""

    @property
    def shown(self) -> Chart:
        """The chart without what is drawn on request only."""
        return replace(self, series=tuple(one for one in self.series if not one.is_extra))


def crossover_interval(crossover: Crossover) -> str:
    """Return ``410–1,300``, or ``410 or more`` if the upper end is beyond the searched range."""
    high = crossover.high
    return f"{crossover.low:,} or more" if high is None else f"{crossover.low:,}–{high:,}"


def axis_word(name: str) -> str:
    """Return the name of an axis for a person: ``batch size``."""
    return _AXIS_WORDS.get(name) or printable(name.replace("_", " "), 60)


def value_text(value: AxisValue | float) -> str:
    """Return a value of an axis for a tick, a table or a sentence."""
    if isinstance(value, str):
        return printable(value, 60)
    return f"{value:,}" if isinstance(value, int) else format_digits(value, 4)


def settings_text(settings: Mapping[str, AxisValue]) -> str:
    """Return ``batch size 64, threads 2``."""
    return ", ".join(f"{axis_word(name)} {value_text(value)}" for name, value in settings.items())


def value_axis(label: str, values: Iterable[float], as_text: Callable[[float], str]) -> ChartAxis:
    """Return an axis that contains all values, logarithmic if their range is wide.

    Args:
        label: The quantity on the axis.
        values: At least one, none of them infinite.
        as_text: Formats a value.
    """
    every = _distinct(values)
    low, high = every[0], every[-1]
    if low > 0 and high / low >= _LOG_SPAN:
        stretch = (high / low) ** _MARGIN
        low, high = low / stretch, high * stretch
        places, scale = _log_ticks(low, high, every), Scale.LOG
    else:
        # Start at 0, unless the values are far from it, such as calendar years.
        starts_at_zero = 0 <= low <= _FAR_FROM_ZERO * high
        span = high if starts_at_zero else high - low
        # If values are nearly equal, keep the ticks distinguishable.
        span = max(span, _LEAST_SPAN * abs(high)) if low < high else abs(high) or 1.0
        rough = span / _FEWEST_STEPS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= rough)
        first = 0.0 if starts_at_zero else math.floor(low / step) * step
        num_steps = max(math.ceil((high - first) * (1 + _MARGIN) / step), 1)
        places = [first + number * step for number in range(num_steps + 1)]
        low, high, scale = first, places[-1], Scale.LINEAR
    ticks = tuple(Tick(place, as_text(place)) for place in places)
    return ChartAxis(label=label, scale=scale, low=low, high=high, ticks=ticks, as_text=as_text)


def speed_axis(rival: str, speeds: Iterable[float]) -> ChartAxis:
    """Return a logarithmic axis of speeds relative to ``rival``; 1 is always a tick.

    Args:
        rival: Name of what has the speed 1.
        speeds: Positive numbers.
    """
    every = [*_distinct(speeds), *_LEAST_SPEEDS]
    low, high = min(every), max(every)
    stretch = (high / low) ** _MARGIN
    low, high = low / stretch, high * stretch
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits, stride in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 4)):
        decades = (decade for decade in range(first, last + 1) if decade % stride == 0)
        values = [digit * 10.0**decade for decade in decades for digit in digits]
        places = [value for value in values if low <= value <= high]
        if len(places) <= _MAX_TICKS:
            break
    else:
        places = [1.0]
    ticks = tuple(Tick(value, ratio_alone(value)) for value in places)
    label = f"speed relative to {rival}"
    return ChartAxis(
        label=label, scale=Scale.LOG, low=low, high=high, ticks=ticks, as_text=ratio_alone
    )


def _log_ticks(low: float, high: float, every: list[float]) -> list[float]:
    ticks: list[float] = []
    if all(value >= 1 and math.log2(value).is_integer() for value in every):
        ends = math.ceil(math.log2(low)), math.floor(math.log2(high))
        ticks = [2.0**exponent for exponent in range(ends[0], ends[1] + 1)]
        return ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leading in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        values = (digit * 10.0**decade for decade in decades for digit in leading)
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) >= _MIN_LOG_TICKS:
            return ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]
    return ticks


def size_axis(label: str, values: Iterable[float]) -> ChartAxis:
    """Return an axis of chosen values; few values on a linear scale each get a tick.

    Args:
        label: The quantity on the axis.
        values: At least one, none of them infinite.
    """
    every = _distinct(values)
    axis = value_axis(label, every, _size_text)
    if axis.scale is Scale.LOG:
        return axis
    # Unlike times, sizes have no natural zero.
    margin = _MARGIN * (every[-1] - every[0]) or 0.5
    low, high = every[0] - margin, every[-1] + margin
    if len(every) <= _MAX_SIZE_TICKS:
        ticks = tuple(Tick(value, _size_text(value)) for value in every)
    else:
        ticks = tuple(tick for tick in axis.ticks if low <= tick.value <= high)
    return ChartAxis(label=label, scale=Scale.LINEAR, low=low, high=high, ticks=ticks)


def _size_text(value: float) -> str:
    if abs(value) >= _LONG_COUNT and value % 1_000 == 0:
        return format_count(value)
    return value_text(int(value)) if float(value).is_integer() else format_digits(value, 4)


def category_axis(label: str, names: Sequence[str]) -> ChartAxis:
    """Return an axis of names side by side."""
    ticks = tuple(Tick(float(number), name) for number, name in enumerate(names))
    high = len(names) - 0.5
    return ChartAxis(label=label, scale=Scale.CATEGORY, low=-0.5, high=high, ticks=ticks)


def _distinct(values: Iterable[float]) -> list[float]:
    return sorted(
        {
            0.0 if abs(value) < _SMALLEST else math.copysign(min(abs(value), _LARGEST), value)
            for value in values
        }
    )


# Okabe and Ito's colours, which people with any colour vision can distinguish, darkened or
# lightened if too faint: for light and for dark paper, at a contrast of 3 or more. The numbers of
# dashes and markers share no divisor with the number of colours, so the pattern repeats late.
COLOURS = (
    ("#1f2328", "#f0f3f6"),
    ("#0072b2", "#56b4e9"),
    ("#c04c00", "#f39a4d"),
    ("#00785a", "#2fc79a"),
    ("#a8467f", "#e58fc0"),
    ("#8a6100", "#f0e442"),
    ("#6a4fc4", "#b9a8ff"),
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2.5), (9, 3, 2, 3))
# SVG paths around (0, 0), about 9 units wide.
_MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.5,-3.5h7v7h-7z",
    "M0,-4.6L4.4,3.4H-4.4z",
    "M0,-4.8L4.8,0L0,4.8L-4.8,0z",
    "M0,4.6L4.4,-3.4H-4.4z",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """One way to draw a series.

    Args:
        colour: Index of its colour in ``COLOURS``.
        dashes: Lengths of dash and gap in points; none for a solid line.
        path: The marker as an SVG path.
    """

    colour: int
    dashes: tuple[float, ...]
    path: str


def style_of(number: int) -> SeriesStyle:
    """Return the style of series ``number``, counted from 0."""
    return SeriesStyle(
        colour=number % len(COLOURS),
        dashes=_DASHES[number % len(_DASHES)],
        path=_MARKERS[number % len(_MARKERS)],
    )
