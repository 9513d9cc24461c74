"""The geometry of a chart in a page or image: positions in the units of its view box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.report.charts.build import PUBLISHED_LABEL, point_text
from breakeven.report.charts.model import (
    NUM_COLOURS,
    Chart,
    ChartSeries,
    PublishedMark,
    Scale,
    style_of,
)
from breakeven.report.text import shorten
from breakeven.timing import Source
from breakeven.units import format_duration

WIDTH = 880
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 18, 10, 50
_PLOT_HEIGHT = 380
_STRIP_ROW = 21
# About how wide a character is, to keep a label within the drawing.
_CHARACTER = 6.4
_ENOUGH_TURNED_CHARACTERS = 100
_KEY_COLUMNS, _KEY_WIDTH, _KEY_HEIGHT = 3, 265, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgTick:
    """A grid line with its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgPoint:
    """A marker: its place, the row of the table that tells about it, and the same in words."""

    x: float
    y: float
    row: int
    text: str
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgSeries:
    """A device: its line, the band of its intervals, and its markers."""

    name: str
    colour: int
    dashes: str
    marker: str
    line: str
    band: str
    whisker: str
    points: tuple[SvgPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgStripMark:
    """One row above the plot: a crossover with its interval, or a published position."""

    y: float
    x: float
    low: float
    high: float
    label: str
    label_x: float
    is_label_left: bool
    colour: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgStar:
    """A published step time."""

    x: float
    y: float
    number: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgKey:
    """A row of the legend: for a series, or a mark that is the same for all; where, in an image."""

    label: str
    series: SvgSeries | None
    mark: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgChart:
    """A chart, ready for the template; the table has the same figures as text."""

    chart: Chart
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[SvgTick, ...]
    y_ticks: tuple[SvgTick, ...]
    are_x_labels_turned: bool
    series: tuple[SvgSeries, ...]
    strip: tuple[SvgStripMark, ...]
    stars: tuple[SvgStar, ...]
    legend: tuple[SvgKey, ...]
    cells: tuple[tuple[tuple[str, bool] | None, ...], ...]

    @property
    def height_with_legend(self) -> float:
        """Return the height of an image, where the legend stands beneath."""
        return self.legend[-1].y + _KEY_HEIGHT

    @property
    def description(self) -> str:
        """Return what the chart shows in words, for those who do not see it."""
        names = ", ".join(series.name for series in self.chart.series)
        marks = "; ".join(mark.label for mark in self.strip)
        return (
            f"{self.chart.y.label} along the {self.chart.x.label}, {self.chart.y.scale} scale, "
            f"of {names}." + (f" {marks}." if marks else "")
        )


def svg_chart(chart: Chart) -> SvgChart:
    """Return the geometry of a chart."""
    num_rows = len(chart.crossovers) + sum(mark.step_ns is None for mark in chart.published)
    top = _TOP + _STRIP_ROW * num_rows
    labels = [tick.label for tick in chart.x.ticks]
    is_turned = sum(map(len, labels)) > _ENOUGH_TURNED_CHARACTERS
    bottom = float(top + _PLOT_HEIGHT)
    height = bottom + _BOTTOM + (60 if is_turned else 0)
    frame = _Frame(chart=chart, top=top)
    series = tuple(_series(series, frame) for series in chart.series)
    return SvgChart(
        chart=chart,
        height=height,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=top,
        bottom=bottom,
        x_ticks=tuple(
            SvgTick(at=frame.x(tick.value), label=shorten(tick.label, 22)) for tick in chart.x.ticks
        ),
        y_ticks=tuple(SvgTick(at=frame.y(tick.value), label=tick.label) for tick in chart.y.ticks),
        are_x_labels_turned=is_turned,
        series=series,
        strip=tuple(_strip(chart, frame)),
        stars=tuple(_stars(chart, frame)),
        legend=tuple(_legend(chart, series, height)),
        cells=_cells(chart),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where the plot is."""

    chart: Chart
    top: float

    def x(self, value: float) -> float:
        return round(_LEFT + self.chart.x.position(value) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, step_ns: float) -> float:
        return round(self.top + (1 - self.chart.y.position(step_ns)) * _PLOT_HEIGHT, 1)


def _series(series: ChartSeries, frame: _Frame) -> SvgSeries:
    style = style_of(series.style)
    points = tuple(
        SvgPoint(
            x=frame.x(point.x),
            y=frame.y(point.step_ns),
            row=point.row,
            text=f"{point_text(point)}, {point.source}",
            is_measured=point.source is Source.MEASURED,
        )
        for point in series.points
    )
    lows = [(point.x, frame.y(p.low_ns)) for point, p in zip(points, series.points, strict=True)]
    highs = [(point.x, frame.y(p.high_ns)) for point, p in zip(points, series.points, strict=True)]
    # Nothing lies between two words or devices, so no line joins them.
    is_line = len(points) > 1 and frame.chart.x.scale is not Scale.CATEGORY
    ends = [f"M{x:g},{low:g}V{high:g}" for (x, low), (_, high) in zip(lows, highs, strict=True)]
    return SvgSeries(
        name=series.name,
        colour=colour_number(series.style),
        dashes=" ".join(f"{length:g}" for length in style.dashes),
        marker=style.path,
        line=_path([(point.x, point.y) for point in points]) if is_line else "",
        band=_path([*highs, *reversed(lows)]) + "Z" if is_line else "",
        whisker="" if is_line else "".join(ends),
        points=points,
    )


def colour_number(style: int) -> int:
    """Return the number of the colour that a style is drawn in."""
    return style % NUM_COLOURS


def _path(places: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places)


def _strip(chart: Chart, frame: _Frame) -> Iterator[SvgStripMark]:
    row = 0
    for mark in chart.crossovers:
        high = chart.x.high if mark.high is None else mark.high
        colour = colour_number(mark.style)
        place = (frame.x(mark.low), frame.x(mark.x), frame.x(high))
        yield _strip_mark(row, place, f"{mark.label} on", colour)
        row += 1
    for published in chart.published:
        if published.step_ns is None:
            x = frame.x(published.x)
            yield _strip_mark(row, (x, x, x), f"{published.label}: {published.where}", None)
            row += 1


def _strip_mark(
    row: int, place: tuple[float, float, float], label: str, colour: int | None
) -> SvgStripMark:
    low, x, high = place
    room_left, room_right = low - 12, WIDTH - high - 12
    is_left = room_left > room_right
    label = shorten(label, max(int(max(room_left, room_right) / _CHARACTER), 12))
    return SvgStripMark(
        y=_TOP + _STRIP_ROW * (row + 0.4),
        x=x,
        low=low,
        high=high,
        label=label,
        label_x=low - 10 if is_left else high + 10,
        is_label_left=is_left,
        colour=colour,
    )


def _stars(chart: Chart, frame: _Frame) -> Iterator[SvgStar]:
    for number, mark in enumerate(chart.published, start=1):
        if mark.step_ns is not None:
            yield SvgStar(
                x=frame.x(mark.x),
                y=frame.y(mark.step_ns),
                number=number,
                label=published_text(mark),
            )


def _legend(chart: Chart, series: Sequence[SvgSeries], top: float) -> Iterator[SvgKey]:
    rows: list[tuple[str, SvgSeries | None, str]] = []
    if not chart.is_by_device:
        rows += [(one.name, one, "series") for one in series]
    rows += [("measured", None, "measured"), ("predicted", None, "predicted")]
    rows.append(("bands and bars: 90 % interval", None, ""))
    for number, mark in enumerate(chart.published, start=1):
        rows.append((f"{number}: {mark.label} ({PUBLISHED_LABEL})", None, "star"))
    for number, (label, one, mark) in enumerate(rows):
        row, column = divmod(number, _KEY_COLUMNS)
        yield SvgKey(
            label=label,
            series=one,
            mark=mark,
            x=_LEFT + column * _KEY_WIDTH,
            y=top + 6 + row * _KEY_HEIGHT,
        )


def published_text(mark: PublishedMark) -> str:
    """Return a published figure in a line, with its source."""
    figure = "" if mark.step_ns is None else f", {format_duration(mark.step_ns)}"
    return f"{mark.label}: {mark.where}{figure}, published in {mark.source}"


def _cells(chart: Chart) -> tuple[tuple[tuple[str, bool] | None, ...], ...]:
    """Return a row per value of x and a column per series: text, and whether it is measured."""
    by_row = [{point.row: point for point in series.points} for series in chart.series]
    return tuple(
        tuple(
            (point_text(points[row]), points[row].source is Source.MEASURED)
            if row in points
            else None
            for points in by_row
        )
        for row in range(len(chart.x_labels))
    )
