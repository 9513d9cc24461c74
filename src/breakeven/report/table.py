"""A table as values: columns of cells, which a terminal and a page lay out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from breakeven.report.phrase import Medium, Phrase, plain

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, as parts of the longest.

    Args:
        start: Where it begins, 0 to 1.
        length: How long it is, 0 to 1.
        style: Its colour at a terminal.
        css_class: Its colour in a page.
    """

    start: float
    length: float
    style: str
    css_class: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A time within its interval, drawn on the axis of its column.

    Args:
        low: Lower end.
        value: The time.
        high: Upper end.
        mark: Its sign.
        style: Its colour.
    """

    low: float
    value: float
    high: float
    mark: str
    style: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with a style, or with another text in a page.

    Args:
        phrase: At a terminal.
        style: Of all of it there.
        page: In a page; None for the same.
    """

    phrase: Phrase
    style: str = ""
    _: KW_ONLY
    page: str | None = None


AnyCell = str | Cell | Bar | Interval


def page_text(cell: AnyCell) -> str:
    """Return a cell as a page shows it."""
    if isinstance(cell, Cell):
        return plain(cell.phrase) if cell.page is None else cell.page
    return cell if isinstance(cell, str) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a table.

    Args:
        header: Its heading.
        cells: One for each row.
        page_header: Its heading in a page, if that is another.
        is_number: Whether it is aligned as numbers.
        only: The one medium that has it.
        optional: 0 for a column that is always shown; the others are if a terminal has room for
            them, those with the lowest number first.
        folds: Whether long cells go on in a further line; the others are never cut.
        least: Characters that a column which folds has at least.
        style: At a terminal.
        axis: Ends of the axis, and a value to mark on it, of a column of intervals.
    """

    header: str
    cells: Sequence[AnyCell]
    _: KW_ONLY
    page_header: str | None = None
    is_number: bool = False
    only: Medium | None = None
    optional: int = 0
    folds: bool = False
    least: int = 8
    style: str = ""
    axis: tuple[float, float, float | None] = (1.0, 10.0, None)


@dataclass(frozen=True, slots=True)
class Table:
    """A table. If a terminal is too narrow for it, its last columns stand below the first ones.

    Args:
        columns: From left to right; the first names the rows.
        caption: What it shows, in a page.
        note: What a reader of a page must know.
        legend: What signs mean, at a terminal.
        marks: A word for each row that the style sheet knows; empty for none.
        has_header: Whether headings are shown at a terminal.
        most: Rows that a terminal shows.
        only: The one medium that has it.
    """

    columns: Sequence[Column]
    caption: str = ""
    _: KW_ONLY
    note: str = ""
    legend: Phrase = ""
    marks: Sequence[str] = ()
    has_header: bool = True
    most: int = 1_000
    only: Medium | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0].cells)

    @property
    def page_columns(self) -> list[Column]:
        """Return the columns that have texts in a page."""
        return [
            column
            for column in self.columns
            if column.only is not Medium.TERMINAL
            and not any(isinstance(cell, Bar) for cell in column.cells)
        ]

    @property
    def bars(self) -> list[Bar]:
        """Return the bars, one for each row; none if it has no column of them."""
        return [cell for column in self.columns for cell in column.cells if isinstance(cell, Bar)]


def columns_of(
    headings: Sequence[str], rows: Iterable[Sequence[AnyCell]], *, numbers: str = ""
) -> tuple[Column, ...]:
    """Return columns from rows.

    Args:
        headings: Of the columns.
        rows: As many cells each.
        numbers: For each column ``n`` if it holds numbers; others if it does not.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    marks = numbers.ljust(len(headings))
    return tuple(
        Column(heading, cells, is_number=mark == "n")
        for heading, cells, mark in zip(headings, columns, marks, strict=True)
    )


def evenly_spread(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    """Return so many items at most, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return items
    last = len(items) - 1
    return [items[round(number * last / (most - 1))] for number in range(most)]
