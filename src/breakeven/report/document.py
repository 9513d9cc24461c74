"""A report as values that a terminal and a page lay out.

A module for each kind of report makes its document. What only one medium has says so by ``only``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TypeVar

from breakeven.report.chart import Chart
from breakeven.report.explain_report import TimelineSpan

_Item = TypeVar("_Item")


class Medium(Enum):
    """Where a document is read."""

    TERMINAL = "terminal"
    PAGE = "page"


# Text, or parts of it, each plain or with a style of the terminal.
Phrase = str | tuple[str | tuple[str, str], ...]


def plain(phrase: Phrase) -> str:
    """Return a phrase without its styles."""
    if isinstance(phrase, str):
        return phrase
    return "".join(part if isinstance(part, str) else part[0] for part in phrase)


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence or fact of its own.

    Args:
        phrase: What it says.
        style: At a terminal.
        indent: Characters before it there.
        only: The one medium that has it.
        is_whole: Never break it, as an address.
    """

    phrase: Phrase
    style: str = ""
    indent: int = 0
    only: Medium | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """What was run, or where.

    Args:
        name: Of the fact.
        text: What it is.
        is_bare: At a terminal the text stands without the name.
        only: The one medium that has it.
    """

    name: str
    text: str
    is_bare: bool = False
    only: Medium | None = None


def fact_lines(facts: Iterable[Fact]) -> Iterator[Line]:
    """Yield facts as a terminal has them."""
    for fact in facts:
        text = fact.text if fact.is_bare else f"{fact.name}: {fact.text}"
        yield Line(text, "dim", only=fact.only)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, in parts of the longest.

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
    """A value within its interval, drawn on a logarithmic axis at a terminal.

    Args:
        low: Lower end, above 0.
        value: The value.
        high: Upper end.
        axis: Both ends of the axis, and a value to mark on it.
        mark: Sign of the value.
        style: Its colour.
    """

    low: float
    value: float
    high: float
    axis: tuple[float, float, float | None]
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


def cell_text(cell: AnyCell, medium: Medium = Medium.TERMINAL) -> str:
    """Return a cell without styles; empty for one that is drawn."""
    if isinstance(cell, Cell):
        is_same = cell.page is None or medium is Medium.TERMINAL
        return plain(cell.phrase) if is_same else cell.page or ""
    return cell if isinstance(cell, str) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a table.

    Args:
        header: Its heading.
        cells: One for each row.
        page_header: Its heading in a page, if that is another.
        is_number: Align it as numbers.
        only: The one medium that has it.
        optional: 0 for always; the others are shown if a terminal has room, the lowest first.
        least: Long cells go on in a further line, in at least so many characters; 0 for never.
        is_cut: They end in an ellipsis instead.
        style: At a terminal.
    """

    header: str
    cells: Sequence[AnyCell]
    _: KW_ONLY
    page_header: str | None = None
    is_number: bool = False
    only: Medium | None = None
    optional: int = 0
    least: int = 0
    is_cut: bool = False
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. If a terminal is too narrow for it, its last columns stand below the first ones.

    Args:
        columns: From left to right; the first names the rows.
        caption: What it shows, in a page.
        note: What a reader of a page must know.
        legend: What signs mean, at a terminal.
        marks: A word for each row that the style sheet knows; empty for none.
        has_header: Show headings at a terminal.
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


def columns_of(
    headings: Sequence[str], rows: Iterable[Sequence[AnyCell]], *, numbers: str = ""
) -> tuple[Column, ...]:
    """Return columns from rows.

    Args:
        headings: Of the columns.
        rows: As many cells each.
        numbers: For each column ``n`` if it holds numbers, a space if not.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    return tuple(
        Column(heading, cells, is_number=mark == "n")
        for heading, cells, mark in zip(
            headings, columns, numbers.ljust(len(headings)), strict=True
        )
    )


def evenly_spread(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    """Return at most so many items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return items
    last = len(items) - 1
    return [items[round(number * last / (most - 1))] for number in range(most)]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of a change of a file."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Markdown:
    """Text of our own in Markdown, for a terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Both timelines of a step.

    Args:
        spans: What happens on them; the last ends after 0.
        description: What they show, for those who do not see it.
    """

    spans: tuple[TimelineSpan, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; at a terminal a blank line stands before it.

    Args:
        title: Its heading.
        blocks: What is in it.
        heading: Its heading at a terminal, if that is another; empty for none.
        style: Of the heading there.
        is_list: Its lines are items of a list, in a page.
        level: Of the heading in a page.
        only: The one medium that has it.
    """

    title: str
    blocks: Sequence[Block]
    _: KW_ONLY
    heading: str | None = None
    style: str = "bold"
    is_list: bool = False
    level: int = 2
    only: Medium | None = None


Block = Line | Table | Code | Markdown | Chart | Timeline | Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report.

    Args:
        title: Of the page.
        answers: The answer in words, the most important sentence first.
        before: What must be known before the answer is read.
        warnings: What may turn the answer itself.
        facts: What was run, and where.
        blocks: Everything else.
        charts: Its charts, for an image of them; None for a kind that has none.
        interval_percent: What intervals hold.
    """

    title: str
    answers: Sequence[Line] = ()
    before: Sequence[Block] = ()
    warnings: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    blocks: Sequence[Block] = ()
    charts: tuple[Chart, ...] | None = None
    interval_percent: int = 90
