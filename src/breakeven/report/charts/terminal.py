"""A chart in a terminal: curves in braille dots, points as letters, readable without colour.

Our own, since plotille has no logarithmic axes, no round ticks and nothing for terminals without
Unicode, and plotext changed its whole interface in version 6.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from breakeven.report.charts.model import Chart, ChartPoint, ChartSeries, CrossoverMark, value_axis
from breakeven.report.charts.timeline import TRACKS, Strip, StripCell, timeline_strip
from breakeven.report.text import printable, shorten
from breakeven.timing import Source
from breakeven.units import format_duration
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, TimelineSpan

# Dots of a braille character by column and row, from U+2800 on.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")
# Letters of one curve closer than this hide its course.
_LETTER_GAP = 4


def chart_text(chart: Chart, *, num_columns: int, num_rows: int, is_ascii: bool = False) -> Text:
    """Return ``chart`` as lines of text.

    Args:
        chart: What to draw; at most as many series as the alphabet has letters.
        num_columns: Width, with the labels of the axis.
        num_rows: Height of the plot alone.
        is_ascii: Draw without braille and lines of boxes.
    """
    # What does not fit a device has no time that it could be compared by.
    chart = _fitted(dataclasses.replace(chart, series=tuple(map(_without_too_big, chart.series))))
    labels = _row_labels(chart, num_rows)
    margin = max(map(len, labels.values()), default=0)
    plot = _Plot(chart, max(num_columns - margin - 2, 8), num_rows, is_ascii=is_ascii)
    for number, series in enumerate(chart.series):
        plot.draw_curve(series, number)
    for number, series in enumerate(chart.series):
        plot.draw_letters(series, number)
    for mark in chart.crossovers:
        plot.draw_crossover(mark)
    lines = [
        Text.assemble(
            (labels.get(row, "").rjust(margin), "dim"),
            (" |" if is_ascii else " ┤" if row in labels else " │", "dim"),
            line,
        )
        for row, line in enumerate(plot.lines())
    ]
    lines += _foot(chart, plot, margin, num_columns)
    return Text("\n").join(lines)


class _Plot:
    """The area between the axes, as cells of dots and characters."""

    def __init__(self, chart: Chart, num_columns: int, num_rows: int, *, is_ascii: bool) -> None:
        self.num_columns = num_columns
        self.is_ascii = is_ascii
        self._chart = chart
        self._num_rows = num_rows
        self._dots: dict[tuple[int, int], tuple[int, str]] = {}
        self._letters: dict[tuple[int, int], tuple[str, str]] = {}
        self._across, self._down = (1, 1) if is_ascii else (2, 4)

    def column(self, x: float) -> int:
        """Return the column of a value on the horizontal axis."""
        return round(self._chart.x.position(x) * (self.num_columns - 1))

    def draw_curve(self, series: ChartSeries, number: int) -> None:
        """Draw straight lines from point to point."""
        dots = [self._dot(point.x, point.step_ns) for point in series.points]
        for (x0, y0), (x1, y1) in itertools.pairwise(dots):
            num_steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for step in range(num_steps + 1):
                share = step / num_steps
                self._set(round(x0 + (x1 - x0) * share), round(y0 + (y1 - y0) * share), number)

    def draw_letters(self, series: ChartSeries, number: int) -> None:
        """Write the letter of the series at its points: a capital where it was measured."""
        last = -_LETTER_GAP
        for point in series.points:
            column = self.column(point.x)
            if column - last >= _LETTER_GAP or point is series.points[-1]:
                letter = _letter(number, is_measured=point.source is Source.MEASURED)
                self._letters[self._row(point.step_ns), column] = (letter, _style(number))
                last = column

    def draw_crossover(self, mark: CrossoverMark) -> None:
        """Mark where the curve of the GPU leaves the CPU's behind."""
        for series in self._chart.series:
            if series.style == mark.style and series.points:
                row = self._row(self._height(series.points, mark.x))
                self._letters[row, self.column(mark.x)] = (self.crossover, "bold")

    @property
    def crossover(self) -> str:
        """The character of a crossover."""
        return "X" if self.is_ascii else "╳"

    def lines(self) -> Iterator[Text]:
        """Yield the rows of the plot, the uppermost first."""
        for row in range(self._num_rows):
            line = Text()
            for column in range(self.num_columns):
                line.append(*self._cell(row, column))
            line.rstrip()
            yield line

    def _cell(self, row: int, column: int) -> tuple[str, str]:
        if (row, column) in self._letters:
            return self._letters[row, column]
        bits, style = self._dots.get((row, column), (0, ""))
        if self.is_ascii:
            return "." if bits else " ", style
        return chr(0x2800 + bits) if bits else " ", style

    def _set(self, x: int, y: int, number: int) -> None:
        cell = (y // self._down, x // self._across)
        bits, _ = self._dots.get(cell, (0, ""))
        self._dots[cell] = (bits | _DOTS[x % self._across][y % self._down], _style(number))

    def _dot(self, x: float, step_ns: float) -> tuple[int, int]:
        across, down = self.num_columns * self._across - 1, self._num_rows * self._down - 1
        return (
            round(self._chart.x.position(x) * across),
            round((1 - self._chart.y.position(step_ns)) * down),
        )

    def _row(self, step_ns: float) -> int:
        return self._dot(self._chart.x.low, step_ns)[1] // self._down

    def _height(self, points: Sequence[ChartPoint], x: float) -> float:
        """Return the step time at ``x`` on the line between two points, as it is drawn."""
        for left, right in itertools.pairwise(points):
            if left.x <= x <= right.x:
                start, end = self._chart.x.position(left.x), self._chart.x.position(right.x)
                share = (self._chart.x.position(x) - start) / (end - start)
                return left.step_ns ** (1 - share) * right.step_ns**share
        return min(points, key=lambda point: abs(point.x - x)).step_ns


def _row_labels(chart: Chart, num_rows: int) -> dict[int, str]:
    labels: dict[int, str] = {}
    for tick in chart.y.ticks:
        row = round((1 - chart.y.position(tick.value)) * (num_rows - 1))
        if not {row - 1, row, row + 1} & labels.keys():
            labels[row] = printable(tick.label)
    return labels


def _foot(chart: Chart, plot: _Plot, margin: int, num_columns: int) -> list[Text]:
    """Return the horizontal axis, its labels, its name, and the legend."""
    rule = ["-" if plot.is_ascii else "─"] * plot.num_columns
    labels = [" "] * (margin + 2 + plot.num_columns)
    free_from = 0
    for tick in chart.x.ticks:
        label, column = printable(tick.label, 20), plot.column(tick.value)
        start = margin + 2 + column - len(label) // 2
        start = min(max(start, free_from), len(labels) - len(label))
        if start < free_from or abs(start + len(label) // 2 - margin - 2 - column) > len(label):
            continue
        rule[column] = "+" if plot.is_ascii else "┴"
        labels[start : start + len(label)] = label
        free_from = start + len(label) + 2
    for mark in chart.crossovers:
        rule[plot.column(mark.x)] = "^" if plot.is_ascii else "▲"
    corner = " +" if plot.is_ascii else " └"
    return [
        Text(" " * margin + corner + "".join(rule), style="dim"),
        Text("".join(labels).rstrip(), style="dim"),
        *_legend(chart, plot, num_columns),
    ]


def _legend(chart: Chart, plot: _Plot, num_columns: int) -> list[Text]:
    entries = [
        Text.assemble((_LETTERS[number], f"bold {_style(number)}"), " ", shorten(series.name, 30))
        for number, series in enumerate(chart.series)
    ]
    sources = {point.source for series in chart.series for point in series.points}
    if len(sources) > 1:
        entries.append(Text("CAPITAL measured, small predicted", style="dim"))
    if chart.crossovers:
        entries.append(Text.assemble((plot.crossover, "bold"), (" crossover", "dim")))
    lines = [Text()]
    for entry in entries:
        gap = 3 if lines[-1].cell_len else 0
        if gap and lines[-1].cell_len + gap + entry.cell_len > num_columns:
            lines.append(Text())
            gap = 0
        lines[-1].append(" " * gap).append_text(entry)
    return lines


def _without_too_big(series: ChartSeries) -> ChartSeries:
    points = tuple(point for point in series.points if not point.is_too_big)
    return dataclasses.replace(series, points=points)


def _fitted(chart: Chart) -> Chart:
    """Return the chart with a vertical axis for its points alone: intervals have no room here."""
    times = [point.step_ns for series in chart.series for point in series.points]
    if not times:
        return chart
    return dataclasses.replace(chart, y=value_axis(chart.y.label, times, _time_tick))


def _time_tick(step_ns: float) -> str:
    return "0" if step_ns == 0 else format_duration(step_ns)


def _letter(number: int, *, is_measured: bool) -> str:
    return _LETTERS[number].upper() if is_measured else _LETTERS[number]


def _style(number: int) -> str:
    return _STYLES[number % len(_STYLES)]


# Height tells how much of a cell's time something happens in, from an eighth to all of it.
_HEIGHTS = "▁▂▃▄▅▆▇█"
_LABEL_CHARACTERS = 9
_MAX_CELLS = 160
_MIN_CELLS = 8


def strip_lines(spans: Sequence[TimelineSpan], console: Console) -> Iterator[Text]:
    """Yield the strip with its axis and legend; nothing where the timeline is empty.

    With colours, a cell has the colour of what takes the most of it, and is as high as it is busy;
    without, it is the letter of that, in lower case where less than half of the cell is busy.
    """
    num_cells = max(min(console.width - _LABEL_CHARACTERS, _MAX_CELLS), _MIN_CELLS)
    strip = timeline_strip(spans, num_cells)
    if strip is None:
        return
    yield from (_strip_track(track, strip, console) for track in TRACKS)
    yield _critical_marks(strip, console)
    yield _strip_axis(strip, num_cells)
    yield _strip_legend(strip, console)


def _uses_blocks(console: Console) -> bool:
    """Return whether colours tell causes apart, so that characters are free to be blocks."""
    has_colours = console.color_system is not None and not console.no_color
    return has_colours and not console.options.ascii_only


def _strip_label(word: str) -> Text:
    return Text.assemble((word.ljust(_LABEL_CHARACTERS), "dim"))


def _strip_track(track: str, strip: Strip, console: Console) -> Text:
    text = _strip_label(track)
    for group, cells in groupby(strip.tracks[track], key=lambda cell: cell.group):
        characters = "".join(_character(cell, console) for cell in cells)
        text.append(characters, style="dim" if group is None else group.value.style)
    text.no_wrap = True
    return text


def _character(cell: StripCell, console: Console) -> str:
    if cell.group is None:
        return " " if _uses_blocks(console) else "."
    return _height(cell) if _uses_blocks(console) else _cell_letter(cell)


def _height(cell: StripCell) -> str:
    return _HEIGHTS[min(int(cell.busy_fraction * len(_HEIGHTS)), len(_HEIGHTS) - 1)]


def _cell_letter(cell: StripCell) -> str:
    letter = cell.group.value.letter if cell.group is not None else "."
    return letter if cell.busy_fraction >= 0.5 else letter.lower()


def _critical_marks(strip: Strip, console: Console) -> Text:
    up, down = _arrows(console)
    marks = {HOST_TRACK: up, DEVICE_TRACK: down, "": " "}
    text = _strip_label("critical")
    text.append("".join(marks[track] for track in strip.critical), style="dim")
    text.no_wrap = True
    return text


def _strip_axis(strip: Strip, num_cells: int) -> Text:
    """Return 0, the middle and the end, as far as there is room for them."""
    end, middle = format_duration(strip.end_ns, 2), format_duration(strip.end_ns / 2, 2)
    line = "0"
    at_middle = num_cells // 2 - cell_len(middle) // 2
    if at_middle > 2 and at_middle + cell_len(middle) + 2 < num_cells - cell_len(end):
        line = line.ljust(at_middle) + middle
    line = shorten(line.ljust(num_cells - cell_len(end)) + end, num_cells)
    text = _strip_label("")
    text.append(line, style="dim")
    text.no_wrap = True
    return text


def _strip_legend(strip: Strip, console: Console) -> Text:
    """Return what colours, letters and arrows mean, broken between entries only."""
    mark = "█" if _uses_blocks(console) else None
    entries = [
        Text.assemble(
            (mark or group.value.letter, group.value.style), (f" {group.value.word}", "dim")
        )
        for group in strip.groups
    ]
    entries.append(
        Text("".join(_arrows(console)) + " the side that the end waits for", style="dim")
    )
    if mark is None:
        entries.append(Text("lower case: less than half of it busy", style="dim"))
    lines = [entries[0]]
    for entry in entries[1:]:
        if lines[-1].cell_len + 3 + entry.cell_len <= console.width:
            lines[-1] = Text.assemble(lines[-1], "   ", entry)
        else:
            lines.append(entry)
    return Text("\n", overflow="fold").join(lines)


def _arrows(console: Console) -> tuple[str, str]:
    return ("^", "v") if console.options.ascii_only else ("▲", "▼")
