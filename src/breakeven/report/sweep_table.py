"""Step times of a sweep as a table: the sizes downwards, the devices across."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.report.chart_model import Chart, ChartPoint, ChartSeries
from breakeven.report.result_table import Glyphs, glyphs_for
from breakeven.report.text import shorten
from breakeven.timing import Source
from breakeven.units import format_duration

_INDENT = 2
_GAP = 2
_MAX_LABEL_CHARACTERS = 24
# Names of devices are broken at one of these widths, the first at which all columns fit.
_HEADER_CHARACTERS = (16, 11, 8)
_MAX_HEADER_LINES = 3
_LEAST_ROWS, _MOST_ROWS = 14, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """A table, and what it had no room for.

    Args:
        table: To be printed.
        num_rows: Sizes shown.
        num_hidden_rows: Sizes left out.
        hidden: Names of the devices left out.
    """

    table: Table
    num_rows: int
    num_hidden_rows: int
    hidden: tuple[str, ...]


def step_table(chart: Chart, console: Console) -> StepTable:
    """Return the table of a chart's points, with as many devices as the console is wide for.

    Sizes are thinned to about half the console's height, evenly, but for the two around the
    first crossover and the last. The shortest step of each row is bold.
    """
    glyphs = glyphs_for(console)
    rows = _kept_rows(chart, min(max(console.height // 2, _LEAST_ROWS), _MOST_ROWS))
    labels = [shorten(chart.x_labels[row], _MAX_LABEL_CHARACTERS) for row in rows]
    word = shorten(chart.x.label, _MAX_LABEL_CHARACTERS)
    room = console.width - _INDENT - max(map(len, [word, *labels])) - _GAP
    columns = _columns(chart, rows, glyphs, room)
    num_shown = _num_that_fit(columns, room)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(
        Text(word), justify="right", no_wrap=True, overflow="ellipsis", vertical="bottom"
    )
    for column in columns[:num_shown]:
        header = Text("\n".join(column.header), justify="right")
        table.add_column(header, justify="right", no_wrap=True, overflow="ellipsis")
    for position, label in enumerate(labels):
        table.add_row(Text(label), *(column.cells[position] for column in columns[:num_shown]))
    return StepTable(
        table=table,
        num_rows=len(rows),
        num_hidden_rows=len(chart.x_labels) - len(rows),
        hidden=tuple(series.name for series in chart.series[num_shown:]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    header: list[str]
    cells: list[Text]

    @property
    def num_characters(self) -> int:
        return max(*map(len, self.header), *(cell.cell_len for cell in self.cells), 1)


def _num_that_fit(columns: Sequence[_Column], room: int) -> int:
    widths = itertools.accumulate(column.num_characters + _GAP for column in columns)
    return max(sum(width - _GAP <= room for width in widths), 1)


def _columns(chart: Chart, rows: Sequence[int], glyphs: Glyphs, room: int) -> list[_Column]:
    """Return all columns, with headers as wide as they can be for all to fit."""
    columns: list[_Column] = []
    for header_characters in _HEADER_CHARACTERS:
        columns = [_column(one, chart, rows, glyphs, header_characters) for one in chart.series]
        if _num_that_fit(columns, room) == len(columns):
            break
    return columns


def _column(
    series: ChartSeries, chart: Chart, rows: Sequence[int], glyphs: Glyphs, header_characters: int
) -> _Column:
    by_row = {point.row: point for point in series.points}
    fastest = {row: _shortest(chart, row) for row in rows}
    cells = [_cell(by_row.get(row), fastest[row], glyphs) for row in rows]
    width = max(header_characters, *(cell.cell_len for cell in cells))
    lines = textwrap.wrap(series.name, width)
    if len(lines) > _MAX_HEADER_LINES:
        lines = textwrap.wrap(shorten(series.name, width * _MAX_HEADER_LINES), width)
    return _Column(header=lines[:_MAX_HEADER_LINES] or [""], cells=cells)


def _cell(point: ChartPoint | None, shortest_ns: float, glyphs: Glyphs) -> Text:
    if point is None:
        return Text("-", style="dim")
    if point.is_too_big:
        return Text("too big", style="red")
    is_measured = point.source is Source.MEASURED
    mark = glyphs.measured if is_measured else glyphs.predicted
    time = format_duration(point.step_ns, 2, keeps_zeros=True)
    is_shortest = point.step_ns == shortest_ns
    return Text.assemble(
        (mark, "green" if is_measured else "blue"), " ", (time, "bold" if is_shortest else "")
    )


def _shortest(chart: Chart, row: int) -> float:
    times = [
        point.step_ns
        for series in chart.series
        for point in series.points
        if point.row == row and not point.is_too_big
    ]
    return min(times, default=0.0)


def _kept_rows(chart: Chart, num_kept: int) -> list[int]:
    """Return rows evenly spread, with the first, the last and those around the crossover."""
    num_rows = len(chart.x_labels)
    if num_rows <= num_kept:
        return list(range(num_rows))
    even = set(range(0, num_rows, math.ceil(num_rows / num_kept)))
    return sorted({*even, num_rows - 1, *_rows_around_crossover(chart)})


def _rows_around_crossover(chart: Chart) -> set[int]:
    if not chart.crossovers:
        return set()
    first = min(mark.x for mark in chart.crossovers)
    x_of = {point.row: point.x for series in chart.series for point in series.points}
    below = [row for row, x in x_of.items() if x < first]
    above = [row for row, x in x_of.items() if x >= first]
    return {*([max(below)] if below else []), *([min(above)] if above else [])}
