"""Tables of figures side by side, as wide as the terminal is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.report.cell_text import cell_text
from breakeven.report.result_table import glyphs_for
from breakeven.report.text import printable
from breakeven.timing import Estimate
from breakeven.verdict import Cell, ColumnKind, RowSource, SystemTable, TableColumn, TableRow

_GAP = 2
_INDENT = 2
# A heading is broken at words rather than to make its column wider than this.
_HEADER_CHARACTERS = 10
# Text narrower than this is hard to read however tall it is.
_LEAST_TEXT_CHARACTERS = 12

_STYLES = {
    RowSource.PUBLISHED: "magenta",
    RowSource.MEASURED: "green",
    RowSource.PREDICTED: "blue",
    RowSource.CHECKED: "cyan",
}


@dataclass(slots=True, kw_only=True)
class _Column:
    header: str
    cells: list[str]
    is_text: bool
    width: int


def source_mark(source: RowSource, console: Console) -> tuple[str, str]:
    """Return the sign of where figures come from, in what the console can show, and its style."""
    glyphs = glyphs_for(console)
    is_ascii = console.options.ascii_only
    marks = {
        RowSource.PUBLISHED: "#" if is_ascii else "◆",
        RowSource.MEASURED: glyphs.measured,
        RowSource.PREDICTED: glyphs.predicted,
        RowSource.CHECKED: "=" if is_ascii else "▪",
    }
    return marks[source], _STYLES[source]


def sources_of(table: SystemTable) -> tuple[RowSource, ...]:
    """Return the sources of a table's figures, in the order in which they are declared."""
    found = {row.source for row in table.rows}
    for row in table.rows:
        found |= {RowSource(cell.source) for cell in row.cells if isinstance(cell, Estimate)}
    return tuple(source for source in RowSource if source in found)


def system_tables(table: SystemTable, console: Console) -> Iterator[Table]:
    """Yield ``table`` as one that fits the console, or as several side parts of it.

    Intervals are left out where there is no room for them, then texts are folded; where the
    figures alone are too wide, they go on in a further table behind the same first column.
    """
    room = console.width - _INDENT - _GAP  # the mark of the row takes a gap and its own width
    for has_intervals in (True, False):
        columns = [
            _column(column, position, table.rows, console, has_intervals=has_intervals)
            for position, column in enumerate(table.columns)
        ]
        if _total(columns) <= room:
            break
    else:
        _fold_texts(columns, room)
    for part in _parts(columns, room):
        yield _drawn(part, table.rows, console)


def _column(
    column: TableColumn,
    position: int,
    rows: Sequence[TableRow],
    console: Console,
    *,
    has_intervals: bool,
) -> _Column:
    cells = [
        _cell(row.cells[position], column.kind, row.source, console, has_intervals=has_intervals)
        for row in rows
    ]
    widest = max(map(len, cells), default=0)
    lines = textwrap.wrap(
        printable(column.name, 80), max(_HEADER_CHARACTERS, widest), break_long_words=False
    )
    return _Column(
        header="\n".join(lines),
        cells=cells,
        is_text=column.kind is ColumnKind.TEXT,
        width=max(widest, *map(len, lines), 1),
    )


def _cell(
    cell: Cell, kind: ColumnKind, source: RowSource, console: Console, *, has_intervals: bool
) -> str:
    if not isinstance(cell, Estimate):
        return cell_text(cell, kind)
    text = cell_text(cell if has_intervals else cell.value_ns, kind)
    if cell.source.value == source.value:
        return text
    # A measured CPU beside a predicted GPU: the row's mark is that of one of them.
    return f"{source_mark(RowSource(cell.source), console)[0]} {text}"


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def _fold_texts(columns: Sequence[_Column], room: int) -> None:
    """Make the widest text narrower until the columns fit, or no text can give more."""
    while _total(columns) > room:
        texts = [c for c in columns if c.is_text and c.width > _LEAST_TEXT_CHARACTERS]
        if not texts:
            return
        max(texts, key=lambda column: column.width).width -= 1


def _parts(columns: list[_Column], room: int) -> Iterator[list[_Column]]:
    """Yield columns that fit, each time behind the first one, whose cells name the rows."""
    first, *rest = columns
    part = [first]
    for column in rest:
        if len(part) > 1 and _total([*part, column]) > room:
            yield part
            part = [first]
        part.append(column)
    yield part


def _drawn(columns: Sequence[_Column], rows: Sequence[TableRow], console: Console) -> Table:
    drawn = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    drawn.add_column("", no_wrap=True)
    for column in columns:
        drawn.add_column(
            Text(column.header, justify="left" if column.is_text else "right"),
            justify="left" if column.is_text else "right",
            vertical="top",
            no_wrap=not column.is_text,
            overflow="fold" if column.is_text else "ellipsis",
            max_width=column.width,
        )
    for number, row in enumerate(rows):
        mark, style = source_mark(row.source, console)
        drawn.add_row(Text(mark, style=style), *(Text(column.cells[number]) for column in columns))
    return drawn
