"""Charts and timelines as SVG: coordinates of their parts, for the templates.

Vertical coordinates are in pixels. A page is as wide as its window: marks and texts have horizontal
coordinates in percent, and paths have units of `AREA` that stretch to the same width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from breakeven.report.chart import Chart, ChartPoint, ChartSeries, CrossoverMark, Scale
from breakeven.report.document import Timeline
from breakeven.report.explain_report import HOST_TRACK, TimelineSpan
from breakeven.report.text import place_text, printable, shorten
from breakeven.report.timeline import TRACKS, CauseGroup, Strip, group_and_words
from breakeven.units import format_duration

# Widths of an image, and of the area between the axes in it.
WIDTH, AREA = 880, 788
# The width of that area on a phone.
_NARROW_AREA = 270
_LEFT, _TOP, _BOTTOM = 74, 10, 50
_PLOT_HEIGHT = 380
_STRIP_ROW = 21
# Approximate width of a character, to keep labels within the drawing.
_CHARACTER = 7.0


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


@dataclass(frozen=True, slots=True)
class StripMark:
    """A row above the plot: a crossover with its interval.

    Args:
        mark: The crossover.
        y: Vertical position of the row.
        low: Left end of its interval.
        high: Right end of its interval.
        label: Its text, shortened to the available room.
        is_label_left: Whether the left side has more room for the label.
    """

    mark: CrossoverMark
    y: float
    low: str
    high: str
    label: str
    is_label_left: bool


class SvgChart:
    """A chart with the coordinates of its parts.

    Args:
        chart: The chart to draw.
    """

    left, area, plot_height = _LEFT, AREA, _PLOT_HEIGHT

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.top = _TOP + _STRIP_ROW * len(chart.crossovers)
        self.strip = [self._mark(row, mark) for row, mark in enumerate(chart.crossovers)]
        # Height of what the series are compared with.
        self.rival_y = self.y(1.0) if chart.rival else _PLOT_HEIGHT
        # Categories have no values in between, so no line joins them.
        self.has_lines = chart.x.scale is not Scale.CATEGORY
        labels = [tick.label for tick in chart.x.ticks]
        width = max(map(len, labels), default=0) * _CHARACTER * len(labels)
        # On a phone, every second number is shown; of names, all are.
        self.is_dense = width > _NARROW_AREA
        self.are_x_labels_turned = width > (AREA if self.has_lines else _NARROW_AREA)
        self.height = self.top + _PLOT_HEIGHT + _BOTTOM + (115 if self.are_x_labels_turned else 0)
        # Text, series, and kind of the mark in front of it.
        self.legend: list[tuple[str, ChartSeries | None, str]] = []
        if not chart.is_by_device:
            self.legend += [(series.label, series, "series") for series in chart.series]
        self.legend += [("measured", None, "measured"), ("predicted", None, "predicted")]
        if chart.too_big_for:
            self.legend.append((chart.too_big_for, None, "big"))
        self.legend.append(("bands and bars: 90 % interval", None, ""))
        # A description for screen readers.
        marks = [mark.label for mark in chart.crossovers]
        for series in filter(lambda one: one.curve and not one.is_extra, chart.series):
            first, last = series.curve[0], series.curve[-1]
            ends = f"{chart.y.as_text(first.value)} at {chart.x_labels[first.row]}"
            if last is not first:
                ends += f", {chart.y.as_text(last.value)} at {chart.x_labels[last.row]}"
            marks.append(f"{series.name}: {ends}")
        above = f"Above 1×, a device is faster than {chart.rival}. " if chart.rival else ""
        self.description = (
            f"{chart.y.label} along the {chart.x.label}, {chart.y.scale} scale. {above}"
            f"{'; '.join(marks)}."
        )
        # Each value of the horizontal axis as text, with the points of all series.
        by_row = [{point.row: point for point in series.points} for series in chart.series]
        self.rows = [
            (label, [points.get(row) for points in by_row])
            for row, label in enumerate(chart.x_labels)
        ]

    def _mark(self, row: int, mark: CrossoverMark) -> StripMark:
        axis = self.chart.x
        low = axis.position(mark.low)
        high = axis.position(axis.high if mark.high is None else mark.high)
        room = max(int((AREA * max(low, 1 - high) - 10) / _CHARACTER), 12)
        return StripMark(
            mark=mark,
            y=_TOP + _STRIP_ROW * (row + 0.4) - self.top,
            low=_percent(low),
            high=_percent(high),
            label=shorten(f"{mark.label} on", room),
            is_label_left=low > 1 - high,
        )

    def at(self, value: float) -> str:
        """Return the horizontal position of a value, in percent."""
        return _percent(self.chart.x.position(value))

    def x(self, value: float) -> float:
        """Return the same in units of the area."""
        return round(self.chart.x.position(value) * AREA, 1)

    def y(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        return round((1 - self.chart.y.position(value)) * _PLOT_HEIGHT, 1)

    def line(self, points: Sequence[ChartPoint]) -> str:
        """Return the path through the points."""
        return _path((self.x(point.x), self.y(point.value)) for point in points)

    def band(self, points: Sequence[ChartPoint]) -> str:
        """Return the path around the intervals."""
        highs = [(self.x(point.x), self.y(point.high)) for point in points]
        lows = [(self.x(point.x), self.y(point.low)) for point in points]
        return _path([*highs, *reversed(lows)]) + "Z"

    def whiskers(self, points: Sequence[ChartPoint]) -> str:
        """Return the path of single intervals, without a band."""
        return "".join(
            f"M{self.x(point.x):g},{self.y(point.low):g}V{self.y(point.high):g}" for point in points
        )


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in places)


_TRACK_HEIGHT, _TRACK_GAP = 36, 26
# A narrower box can be neither seen nor pointed at: boxes of one colour share a path.
_LEAST_TITLED_WIDTH = 1.5
_LEAST_WIDTH = 0.3
_NUM_TICKS = 4
# Corners of the line that shows which side the end waits for.
_NUM_CRITICAL_CELLS = 220
_MAX_TITLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class SvgSpan:
    """A span wide enough to point at."""

    x: float
    y: float
    width: float
    css_class: str
    title: str


class SvgTimeline:
    """Both timelines with the coordinates of their parts.

    Args:
        timeline: The spans of both sides.
    """

    left, area, row_height = _LEFT, AREA, _TRACK_HEIGHT
    plot_height = 6 + 2 * _TRACK_HEIGHT + _TRACK_GAP
    height = plot_height + 26

    def __init__(self, timeline: Timeline) -> None:
        self.description = timeline.description
        self._strip = Strip(timeline.spans, _NUM_CRITICAL_CELLS)
        self.spans: list[SvgSpan] = []
        # Paths by colour.
        self.small_spans: dict[str, str] = {}
        for span in timeline.spans:
            if span.track not in TRACKS or span.end_ns < span.start_ns:
                continue
            x, y = self.x(span.start_ns), self.row_y(span.track)
            width = max(self.x(span.end_ns) - x, _LEAST_WIDTH)
            css_class = group_and_words(span.cause)[0].css_class
            if width < _LEAST_TITLED_WIDTH:
                path = f"M{x:g},{y}h{width:.1f}v{_TRACK_HEIGHT}h-{width:.1f}z"
                self.small_spans[css_class] = self.small_spans.get(css_class, "") + path
            else:
                self.spans.append(SvgSpan(x, y, round(width, 1), css_class, _title(span)))
        used = {group_and_words(span.cause)[0] for span in timeline.spans}
        self.legend = [group for group in CauseGroup if group in used]
        shares = [number / _NUM_TICKS for number in range(_NUM_TICKS + 1)]
        texts = [
            format_duration(self._strip.end_ns * share, 2) if share else "0" for share in shares
        ]
        self.ticks = list(zip(map(_percent, shares), texts, strict=True))
        self.rows = [(track, self.row_y(track) + _TRACK_HEIGHT / 2) for track in TRACKS]

    def x(self, time_ns: float) -> float:
        """Return the horizontal coordinate of a point in time."""
        return round(time_ns / self._strip.end_ns * AREA, 1)

    def row_y(self, track: str) -> int:
        """Return the upper edge of a track."""
        return 6 + TRACKS.index(track) * (_TRACK_HEIGHT + _TRACK_GAP)

    @property
    def critical(self) -> str:
        """The path of a line next to the side that the end waits for: host above, device below."""
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
    parts = (
        printable(span.name, 60),
        format_duration(span.end_ns - span.start_ns),
        group_and_words(span.cause)[1],
        printable(span.phase, 20),
        shorten(printable(span.module, None), 60),
        place_text(span.file, span.line, 60),
    )
    return shorten(" · ".join(filter(None, parts)), _MAX_TITLE_CHARACTERS)
