"""A chart of step times as values: axes, points, crossovers, and the styles of series.

Series differ by colour, dashes and marker, so two differences remain without colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from breakeven.report.text import duration_with_interval, printable
from breakeven.timing import Source
from breakeven.units import format_count, format_digits, format_duration
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisValue,
    Crossover,
    CurvePoint,
    DeviceKind,
    DeviceResult,
    SweepPoint,
)

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
_LEAST_NS = 1.0
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
        unit: The value in whose multiples ticks are round.
    """

    label: str
    scale: Scale
    low: float
    high: float
    ticks: tuple[Tick, ...]
    as_text: Callable[[float], str] = str
    unit: float = 1.0

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
    """A step time with its 90 % interval.

    Args:
        x: Value on the horizontal axis.
        row: Index of its value in the chart's ``x_labels``.
        step_ns: Time of one step.
        low_ns: Lower end of its interval.
        high_ns: Upper end.
        source: Measured or predicted.
        is_too_big: Whether the step exceeds the device's memory.
    """

    x: float
    row: int
    step_ns: float
    low_ns: float
    high_ns: float
    source: Source
    is_too_big: bool = False

    @property
    def text(self) -> str:
        """The step time with its interval."""
        text = duration_with_interval(self.step_ns, self.low_ns, self.high_ns)
        return f"{text}, too big" if self.is_too_big else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """The points of one device.

    Args:
        name: Name in the legend.
        kind: CPU or GPU.
        style: Number of its style.
        points: Points by ``x``, at most one for each.
    """

    name: str
    kind: DeviceKind
    style: int
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverMark:
    """The value from which a GPU wins.

    Args:
        style: Style number of its series.
        x: The value.
        low: Lower end of the interval.
        high: Upper end; ``None`` if it is beyond the searched range.
        label: The same in words.
    """

    style: int
    x: float
    low: float
    high: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Step times of devices along one axis.

    Args:
        title: Title of the chart.
        note: Held settings and other remarks for the reader; may be empty.
        x: The axis along which the devices are compared.
        y: Time of one step.
        x_labels: Label of each ``x`` that has a point, ascending.
        series: One per device.
        crossovers: The values from which GPUs win.
        is_by_device: Whether each series is a single point, with its own place on ``x``.
    """

    title: str
    note: str
    x: ChartAxis
    y: ChartAxis
    x_labels: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    crossovers: tuple[CrossoverMark, ...] = ()
    is_by_device: bool = False


def step_chart(
    *,
    title: str,
    x: ChartAxis,
    x_labels: Iterable[str],
    series: Sequence[tuple[str, DeviceKind, tuple[ChartPoint, ...]]],
    crossovers: Iterable[tuple[str, Crossover]] = (),
    note: str = "",
    is_by_device: bool = False,
) -> Chart:
    """Return a chart of step times.

    Args:
        title: Title of the chart.
        x: The horizontal axis.
        x_labels: Label of each value on ``x`` that has a point.
        series: Name, kind and points of each device.
        crossovers: Crossovers, each with a remark that distinguishes it from others of the chart.
        note: Held settings.
        is_by_device: Whether each series is a single point.
    """
    ordered = sorted(series, key=lambda named: named[1] is not DeviceKind.CPU)
    style_by_name = {name: number for number, (name, _, _) in enumerate(ordered)}
    every = [
        max(value, _LEAST_NS)
        for _, _, points in series
        for point in points
        for value in (point.low_ns, point.high_ns)
    ]
    marks: list[CrossoverMark] = []
    for remark, found in crossovers:
        name = printable(found.device, 60) + (f" ({remark})" if remark else "")
        mark = CrossoverMark(
            style=style_by_name.get(found.device, 0),
            x=float(found.value),
            low=float(found.low),
            high=None if found.high is None else float(found.high),
            label=f"{name} faster from {found.value:,} ({crossover_interval(found)})",
        )
        marks.append(mark)
    return Chart(
        title=title,
        note=note,
        x=x,
        y=value_axis("time of one step", every, lambda ns: format_duration(ns) if ns else "0"),
        x_labels=tuple(x_labels),
        series=tuple(
            ChartSeries(
                name=printable(name, 60), kind=kind, style=style_by_name[name], points=points
            )
            for name, kind, points in ordered
        ),
        crossovers=tuple(marks),
        is_by_device=is_by_device,
    )


def chart_point(timed: DeviceResult | SweepPoint | CurvePoint, x: float, row: int) -> ChartPoint:
    """Return the point of a step time."""
    return ChartPoint(
        x=x,
        row=row,
        step_ns=timed.step_ns,
        low_ns=timed.low_ns,
        high_ns=timed.high_ns,
        source=timed.source,
        is_too_big=not isinstance(timed, CurvePoint) and timed.fits is False,
    )


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


def value_axis(
    label: str, values: Iterable[float], as_text: Callable[[float], str], unit: float = 1.0
) -> ChartAxis:
    """Return an axis that contains all values, logarithmic if their range is wide.

    Args:
        label: The quantity on the axis.
        values: At least one, none of them infinite.
        as_text: Formats a value.
        unit: The value in whose multiples ticks are round: an hour for times in hours.
    """
    every = _distinct(value / unit for value in values)
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
    ticks = tuple(Tick(unit * place, as_text(unit * place)) for place in places)
    low, high = unit * low, unit * high
    return ChartAxis(
        label=label, scale=scale, low=low, high=high, ticks=ticks, as_text=as_text, unit=unit
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


PAPER_LIGHT = "#ffffff"
PAPER_DARK = "#15181d"
# Okabe and Ito's colours, which people with any colour vision can distinguish, darkened or
# lightened if too faint: for light and for dark paper. The numbers of dashes and markers share no
# divisor with the number of colours, so the pattern repeats late.
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
# Names in matplotlib, and paths around (0, 0), about 9 units wide.
_MARKERS = (
    ("o", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z"),
    ("s", "M-3.5,-3.5h7v7h-7z"),
    ("^", "M0,-4.6L4.4,3.4H-4.4z"),
    ("D", "M0,-4.8L4.8,0L0,4.8L-4.8,0z"),
    ("v", "M0,4.6L4.4,-3.4H-4.4z"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """One way to draw a series.

    Args:
        colour: Index of its colour.
        light: Colour on ``PAPER_LIGHT``, at a contrast of 3 or more.
        dark: Colour on ``PAPER_DARK``, at the same contrast.
        dashes: Lengths of dash and gap in points; none for a solid line.
        marker: Its name in matplotlib.
        path: The marker as an SVG path.
    """

    colour: int
    light: str
    dark: str
    dashes: tuple[float, ...]
    marker: str
    path: str


def style_of(number: int) -> SeriesStyle:
    """Return the style of series ``number``, counted from 0."""
    colour = number % len(COLOURS)
    light, dark = COLOURS[colour]
    marker, path = _MARKERS[number % len(_MARKERS)]
    dashes = _DASHES[number % len(_DASHES)]
    return SeriesStyle(
        colour=colour, light=light, dark=dark, dashes=dashes, marker=marker, path=path
    )
