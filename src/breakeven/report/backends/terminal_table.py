"""What of a table a terminal has room for: which rows and columns, and how wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rich.cells import cell_len

from breakeven.report.phrase import Medium, plain
from breakeven.report.table import AnyCell, Bar, Cell, Column, Interval, Table, terminal_phrase
from breakeven.report.text import shorten

# Between two columns.
GAP = 2
_BAR_CHARACTERS = (6, 44)
_INTERVAL_CHARACTERS = (13, 28)
# Headings of columns that are several of a kind are broken at the first of these widths at which
# all of the columns fit.
_HEADER_CHARACTERS = (16, 11, 8)
_MAX_HEADER_LINES = 3
_LEAST_ROWS, _MOST_ROWS = 14, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """A column with its width, heading and cells as they have room.

    Args:
        column: The column.
        header: Its heading, in lines.
        cells: Of the rows that are shown.
        is_brief: Whether they are the brief ones.
        width: Its characters.
        least: Characters that it may be narrowed to.
    """

    column: Column
    header: str
    cells: Sequence[AnyCell]
    is_brief: bool
    width: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """What is shown of a table.

    Args:
        parts: Columns of each table that it becomes, one below the other.
        rows: Which of its rows.
        hidden: Headings of columns that have no room.
    """

    parts: Sequence[Sequence[FittedColumn]]
    rows: Sequence[int]
    hidden: Sequence[str]


def fit_table(table: Table, room: int, height: int, shown: Callable[[str], str]) -> FittedTable:
    """Return a table as it fits: columns that join, briefer cells, then narrower columns.

    Args:
        table: The table.
        room: Characters of a line.
        height: Lines of the terminal.
        shown: Returns a text in the characters of the terminal.
    """
    rows = list(range(table.num_rows))
    if table.is_thinned:
        rows = _kept_rows(table, min(max(height // 2, _LEAST_ROWS), _MOST_ROWS))
    columns = [column for column in table.columns if column.only is not Medium.PAGE]
    if not table.has_header:
        columns = [replace(column, header="") for column in columns]
    briefs = (False,)
    if any(isinstance(cell, Cell) and cell.brief for c in columns for cell in c.cells):
        below = table.brief_below
        briefs = (room + table.indent < below,) if below else (False, True)
    fitted: list[FittedColumn] = []
    for is_brief, header_characters in product(briefs, _HEADER_CHARACTERS):
        fitted = [
            _fitted(
                column,
                rows,
                shown,
                is_brief=is_brief,
                header_characters=header_characters,
                breaks_headers=table.splits,
            )
            for column in columns
        ]
        if _total(fitted) <= room:
            break
    chosen = _joined(fitted, room)
    hidden = [one.column.header for one in fitted if one.column.is_across and one not in chosen]
    chosen = _narrowed(chosen, room)
    parts = _split(chosen, room) if table.splits else [chosen]
    return FittedTable(parts=parts, rows=rows, hidden=hidden)


def _fitted(
    column: Column,
    rows: Sequence[int],
    shown: Callable[[str], str],
    *,
    is_brief: bool,
    header_characters: int,
    breaks_headers: bool,
) -> FittedColumn:
    cells = [column.cells[row] for row in rows]
    sample = cells[0] if cells else ""
    header = column.header
    if is_brief and column.brief_header is not None:
        header = column.brief_header
    if isinstance(sample, Interval | Bar):
        least, most = _INTERVAL_CHARACTERS if isinstance(sample, Interval) else _BAR_CHARACTERS
        return FittedColumn(
            column=column, header=header, cells=cells, is_brief=False, width=most, least=least
        )
    texts = [shown(plain(terminal_phrase(cell, is_brief=is_brief))) for cell in cells]
    widest = max(map(cell_len, texts), default=0)
    if column.is_across or breaks_headers:
        width = max(_HEADER_CHARACTERS[-1] if breaks_headers else header_characters, widest)
        lines = textwrap.wrap(header, width) or [""]
        if len(lines) > _MAX_HEADER_LINES:
            lines = textwrap.wrap(shorten(header, width * _MAX_HEADER_LINES), width)
        header = "\n".join(lines[:_MAX_HEADER_LINES])
    width = max(widest, *map(cell_len, header.split("\n")), 1)
    width = width if column.most is None else min(width, column.most)
    least = width if column.least is None else min(column.least, width)
    return FittedColumn(
        column=column, header=header, cells=cells, is_brief=is_brief, width=width, least=least
    )


def _joined(columns: Sequence[FittedColumn], room: int) -> list[FittedColumn]:
    """Return the columns that are always there, and of the others those that there is room for."""
    chosen = {id(one) for one in columns if not one.column.joins and not one.column.is_across}
    first_across = next((one for one in columns if one.column.is_across), None)
    if first_across is not None:
        chosen.add(id(first_across))
    used = sum(one.least + GAP for one in columns if id(one) in chosen)
    is_full = False
    for one in sorted(columns, key=lambda one: one.column.joins):
        if id(one) in chosen or (is_full and one.column.is_across):
            continue
        if used + one.least <= room:
            chosen.add(id(one))
            used += one.least + GAP
        elif one.column.is_across:
            is_full = True
    return [one for one in columns if id(one) in chosen]


def _narrowed(columns: Sequence[FittedColumn], room: int) -> list[FittedColumn]:
    """Make the widest columns narrower until all fit, or none can give more."""
    widths = [one.width for one in columns]
    while sum(widths) + GAP * (len(widths) - 1) > room:
        able = [n for n, one in enumerate(columns) if widths[n] > one.least]
        if not able:
            break
        widths[max(able, key=lambda n: widths[n])] -= 1
    return [
        replace(one, width=width, header=_header(one, width))
        for one, width in zip(columns, widths, strict=True)
    ]


def _header(fitted: FittedColumn, width: int) -> str:
    """Return a heading; that of an axis names both ends."""
    start, bar, end = fitted.header.partition("|")
    return start + end.rjust(width - len(start)) if bar else fitted.header


def _split(columns: Sequence[FittedColumn], room: int) -> list[list[FittedColumn]]:
    """Return columns in parts that fit, each behind the two first ones, which name the rows."""
    head, rest = list(columns[:2]), columns[2:]
    parts = [list(head)]
    for column in rest:
        if len(parts[-1]) > len(head) and _total([*parts[-1], column]) > room:
            parts.append(list(head))
        parts[-1].append(column)
    return parts


def _total(columns: Sequence[FittedColumn]) -> int:
    return sum(one.least + GAP for one in columns) - GAP


def _kept_rows(table: Table, num_kept: int) -> list[int]:
    """Return rows evenly spread, with the first, the last and those to be kept."""
    num_rows = table.num_rows
    if num_rows <= num_kept:
        return list(range(num_rows))
    even = range(0, num_rows, math.ceil(num_rows / num_kept))
    return sorted({*even, num_rows - 1, *table.kept_rows})
