"""A table as values: columns of cells, and how they give way where there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """A cell that differs from its text somewhere.

    Args:
        phrase: At a terminal.
        style: Of all of it there.
        brief: The same in fewer characters, for when there is no room.
        page: In a page; None for the same.
        fit: Returns the text for so many characters, where cutting out its middle would lose what
            matters.
        is_code: Whether it is code.
    """

    phrase: Phrase
    style: str = ""
    _: KW_ONLY
    brief: Phrase | None = None
    page: str | None = None
    fit: Callable[[int], str] | None = None
    is_code: bool = False


AnyCell = str | Cell | Bar | Interval


def terminal_phrase(cell: AnyCell, *, is_brief: bool) -> Phrase:
    """Return a cell as a terminal shows it; nothing for what is drawn."""
    if isinstance(cell, Cell):
        return cell.brief if is_brief and cell.brief is not None else cell.phrase
    return cell if isinstance(cell, str) else ""


def page_text(cell: AnyCell) -> str:
    """Return a cell as a page shows it."""
    if isinstance(cell, Cell):
        return plain(cell.phrase) if cell.page is None else cell.page
    return cell if isinstance(cell, str) else ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        header: Its heading.
        cells: One for each row.
        page_header: Its heading in a page, where that is another.
        brief_header: Its heading over brief cells, where that is another.
        is_number: Whether it is aligned as numbers.
        only: The one medium that has it.
        joins: 0 for a column that is always there; the others join where there is room, in this
            order.
        is_across: Whether it is one of several of a kind: those without room are left out, but
            for the first.
        least: Characters that it may be shortened to; None for as they are.
        most: Characters that it has at most.
        folds: Whether longer cells go on in a further line.
        cuts_end: Whether longer cells lose their end, not their middle.
        style: At a terminal.
        axis: Ends of the axis, and a value to mark on it, of a column of intervals.
    """

    header: str
    cells: Sequence[AnyCell]
    _: KW_ONLY
    page_header: str | None = None
    brief_header: str | None = None
    is_number: bool = False
    only: Medium | None = None
    joins: int = 0
    is_across: bool = False
    least: int | None = None
    most: int | None = None
    folds: bool = False
    cuts_end: bool = False
    style: str = ""
    axis: tuple[float, float, float | None] = (1.0, 10.0, None)


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Args:
        columns: From left to right.
        caption: What it shows, in a page.
        note: What a reader of a page must know.
        legend: What signs mean, at a terminal.
        marks: A word for each row that the style sheet knows; empty for none.
        row_styles: A style for each row at a terminal.
        indent: Characters before it there.
        has_header: Whether headings are shown there.
        brief_below: Width of the terminal below which cells are brief.
        is_thinned: Whether rows are thinned to the height of the terminal.
        kept_rows: Rows that are kept then.
        splits: Whether figures that have no room go on in a further table.
        left_out: Says what had no room: of rows shown, all rows, and headings left out.
        only: The one medium that has it.
    """

    columns: Sequence[Column]
    caption: str = ""
    _: KW_ONLY
    note: str = ""
    legend: Phrase = ""
    marks: Sequence[str] = ()
    row_styles: Sequence[str] = ()
    indent: int = 2
    has_header: bool = True
    brief_below: int = 0
    is_thinned: bool = False
    kept_rows: frozenset[int] = frozenset()
    splits: bool = False
    left_out: Callable[[int, int, Sequence[str]], str] | None = None
    only: Medium | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0].cells)


def columns_of(
    headings: Sequence[str], rows: Iterable[Sequence[AnyCell]], *, numbers: str = ""
) -> tuple[Column, ...]:
    """Return columns from rows.

    Args:
        headings: Of the columns.
        rows: As many cells each.
        numbers: For each column ``n`` where it holds numbers; others where it does not.
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


def left_out_text(*parts: str) -> str:
    """Return what a table left out, and where it is: ``8 of 40 sizes; all by --json``.

    Args:
        *parts: What of it, each empty for nothing.
    """
    said = [part for part in parts if part]
    return "; ".join([*said, "all by --json"]) if said else ""
