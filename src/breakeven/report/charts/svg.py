"""Charts and timelines as SVG: the places of their parts, for the templates.

Places are in the units of the view box, which is `WIDTH` wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from breakeven.report.charts.build import point_text
from breakeven.report.charts.causes import TRACKS, CauseGroup, Strip, cause_words, group_of
from breakeven.report.charts.model import (
    NUM_COLOURS,
    Chart,
    ChartPoint,
    ChartSeries,
    Scale,
    SeriesStyle,
    style_of,
)
from breakeven.report.phrase import place_of
from breakeven.report.text import printable, shorten
from breakeven.timing import Source
from breakeven.units import format_duration
from breakeven.verdict import HOST_TRACK, TimelineSpan

WIDTH = 880
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 18, 10, 50
_PLOT_HEIGHT = 380
_STRIP_ROW = 21
# About how wide a character is, to keep a label within the drawing.
_CHARACTER = 6.4
_ENOUGH_TURNED_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StripMark:
    """A row above the plot: a crossover with its interval.

    Args:
        label: What it is.
        x: Its place.
        low: Where its interval begins.
        high: Where that ends.
        style: That of its series.
    """

    label: str
    x: float
    low: float
    high: float
    style: int

    @property
    def is_label_left(self) -> bool:
        """Return whether there is more room for the label on the left."""
        return self.low > WIDTH - self.high

    @property
    def short_label(self) -> str:
        """Return the label as far as it has room."""
        room = max(self.low, WIDTH - self.high) - 12
        return shorten(self.label, max(int(room / _CHARACTER), 12))


class SvgChart:
    """A chart with the places of its parts.

    Args:
        chart: What to draw.
    """

    left, right = _LEFT, WIDTH - _RIGHT

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.strip = tuple(self._strip())
        self.top = _TOP + _STRIP_ROW * len(self.strip)
        self.bottom = float(self.top + _PLOT_HEIGHT)
        labels = sum(len(tick.label) for tick in chart.x.ticks)
        self.are_x_labels_turned = labels > _ENOUGH_TURNED_CHARACTERS
        self.height = self.bottom + _BOTTOM + (60 if self.are_x_labels_turned else 0)
        # Nothing lies between two words or devices, so no line joins them.
        self.has_lines = chart.x.scale is not Scale.CATEGORY
        # Text, series, and what the mark beside it shows.
        self.legend: list[tuple[str, ChartSeries | None, str]] = []
        if not chart.is_by_device:
            self.legend += [(series.name, series, "series") for series in chart.series]
        self.legend += [("measured", None, "measured"), ("predicted", None, "predicted")]
        self.legend.append(("bands and bars: 90 % interval", None, ""))

    def x(self, value: float) -> float:
        """Return the place of a value along the horizontal axis."""
        return round(_LEFT + self.chart.x.position(value) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, step_ns: float) -> float:
        """Return the place of a step time."""
        return round(self.top + (1 - self.chart.y.position(step_ns)) * _PLOT_HEIGHT, 1)

    def strip_y(self, row: int) -> float:
        """Return the place of a row above the plot."""
        return _TOP + _STRIP_ROW * (row + 0.4)

    def line(self, points: Sequence[ChartPoint]) -> str:
        """Return the path from point to point."""
        return _path((self.x(point.x), self.y(point.step_ns)) for point in points)

    def band(self, points: Sequence[ChartPoint]) -> str:
        """Return the path around the intervals."""
        highs = [(self.x(point.x), self.y(point.high_ns)) for point in points]
        lows = [(self.x(point.x), self.y(point.low_ns)) for point in points]
        return _path([*highs, *reversed(lows)]) + "Z"

    def whiskers(self, points: Sequence[ChartPoint]) -> str:
        """Return the path of intervals that no band joins."""
        return "".join(
            f"M{self.x(point.x):g},{self.y(point.low_ns):g}V{self.y(point.high_ns):g}"
            for point in points
        )

    @property
    def description(self) -> str:
        """Return what the chart shows in words, for those who do not see it."""
        chart, names = self.chart, ", ".join(series.name for series in self.chart.series)
        marks = "; ".join(mark.short_label for mark in self.strip)
        return f"{chart.y.label} along the {chart.x.label}, {chart.y.scale} scale, of {names}." + (
            f" {marks}." if marks else ""
        )

    @property
    def rows(self) -> list[tuple[str, list[ChartPoint | None]]]:
        """Return each value of the horizontal axis in words, with the points of all series."""
        by_row = [{point.row: point for point in series.points} for series in self.chart.series]
        return [
            (label, [points.get(row) for points in by_row])
            for row, label in enumerate(self.chart.x_labels)
        ]

    def _strip(self) -> Iterator[StripMark]:
        for mark in self.chart.crossovers:
            high = self.chart.x.high if mark.high is None else mark.high
            yield StripMark(
                label=f"{mark.label} on",
                x=self.x(mark.x),
                low=self.x(mark.low),
                high=self.x(high),
                style=mark.style,
            )


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places)


def colour_number(style: int) -> int:
    """Return the number of the colour that a style is drawn in."""
    return style % NUM_COLOURS


def dashes_of(style: SeriesStyle) -> str:
    """Return the lengths of dashes and gaps as SVG has them."""
    return " ".join(f"{length:g}" for length in style.dashes)


def is_measured(point: ChartPoint) -> bool:
    """Return whether a point was measured."""
    return point.source is Source.MEASURED


# What templates call.
CHART_FUNCTIONS = {
    "colour_number": colour_number,
    "dashes_of": dashes_of,
    "is_measured": is_measured,
    "point_text": point_text,
    "style_of": style_of,
}

_TRACK_LEFT, _TRACK_RIGHT = 60, 12
_TRACK_HEIGHT, _TRACK_GAP = 36, 26
# A narrower box can neither be seen nor pointed at alone: those of one colour are one path.
_LEAST_TITLED_WIDTH = 1.5
_LEAST_WIDTH = 0.3
_NUM_TICKS = 4
# Corners of the line that tells which side the end waits for.
_NUM_CRITICAL_CELLS = 220
_MAX_TITLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgSpan:
    """A span that is wide enough to be pointed at."""

    x: float
    y: float
    width: float
    css_class: str
    title: str


class SvgTimeline:
    """Both timelines with the places of their parts.

    Args:
        timeline: What happens on both; at least one span that ends after 0.
        description: What they show, for those who do not see it.
    """

    width, row_height = WIDTH, _TRACK_HEIGHT
    height = 6 + 2 * _TRACK_HEIGHT + _TRACK_GAP + 26

    def __init__(self, timeline: Sequence[TimelineSpan], description: str) -> None:
        self.description = description
        self._strip = Strip(timeline, _NUM_CRITICAL_CELLS)
        self.spans: list[SvgSpan] = []
        # Paths by colour.
        self.small_spans: dict[str, str] = {}
        for span in timeline:
            if span.track not in TRACKS or span.end_ns < span.start_ns:
                continue
            x, y = self.x(span.start_ns), self.row_y(span.track)
            width = max(self.x(span.end_ns) - x, _LEAST_WIDTH)
            css_class = group_of(span.cause).value.css_class
            if width < _LEAST_TITLED_WIDTH:
                path = f"M{x:g},{y}h{width:.1f}v{_TRACK_HEIGHT}h-{width:.1f}z"
                self.small_spans[css_class] = self.small_spans.get(css_class, "") + path
            else:
                box = SvgSpan(
                    x=x, y=y, width=round(width, 1), css_class=css_class, title=_title(span)
                )
                self.spans.append(box)
        used = {group_of(span.cause) for span in timeline}
        self.legend = [group.value for group in CauseGroup if group in used]
        times_ns = [self._strip.end_ns * number / _NUM_TICKS for number in range(_NUM_TICKS + 1)]
        self.ticks = [(self.x(ns), format_duration(ns, 2) if ns else "0") for ns in times_ns]
        self.rows = [(track, self.row_y(track) + _TRACK_HEIGHT / 2) for track in TRACKS]

    def x(self, time_ns: float) -> float:
        """Return the place of a point in time."""
        share = time_ns / self._strip.end_ns
        return round(_TRACK_LEFT + share * (WIDTH - _TRACK_LEFT - _TRACK_RIGHT), 1)

    def row_y(self, track: str) -> int:
        """Return the upper end of a track."""
        return 6 + TRACKS.index(track) * (_TRACK_HEIGHT + _TRACK_GAP)

    @property
    def critical(self) -> str:
        """Return a line below the host or above the device, whichever is waited for."""
        middle = 6 + _TRACK_HEIGHT + _TRACK_GAP / 2
        cell_ns = self._strip.end_ns / _NUM_CRITICAL_CELLS
        path, last = "", ""
        for number, track in enumerate(self._strip.critical):
            y = middle - 8 if track == HOST_TRACK else middle + 8
            if track and not last:
                path += f"M{self.x(number * cell_ns):g},{y:g}"
            elif track and track != last:
                path += f"V{y:g}"
            if track:
                path += f"H{self.x((number + 1) * cell_ns):g}"
            last = track
        return path


def _title(span: TimelineSpan) -> str:
    place = place_of(span.file, span.line)
    parts = [
        printable(span.name, 60),
        format_duration(span.end_ns - span.start_ns),
        cause_words(span.cause),
        printable(span.phase, 20),
        shorten(printable(span.module, None), 60),
        "" if place is None else place.text(60),
    ]
    return shorten(" · ".join(part for part in parts if part), _MAX_TITLE_CHARACTERS)
