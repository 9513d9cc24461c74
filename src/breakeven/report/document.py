"""A report as values, laid out by a terminal or a page.

Each kind of report has a module that makes its document. ``only`` restricts a part to one medium.
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
    """The place where a document is read."""

    TERMINAL = "terminal"
    PAGE = "page"


# Text or parts of it, each plain or with a terminal style.
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
        phrase: Its text.
        style: Style in a terminal.
        indent: Indentation in a terminal, in characters.
        only: The only medium that shows it; None for both.
        is_whole: Whether to never break it, as for a URL.
    """

    phrase: Phrase
    style: str = ""
    indent: int = 0
    only: Medium | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the run or its machine.

    Args:
        name: Name of the fact.
        text: Its value.
        is_bare: Whether a terminal shows the text without the name.
        only: The only medium that shows it; None for both.
    """

    name: str
    text: str
    is_bare: bool = False
    only: Medium | None = None


def fact_lines(facts: Iterable[Fact]) -> Iterator[Line]:
    """Yield facts as lines for a terminal."""
    for fact in facts:
        text = fact.text if fact.is_bare else f"{fact.name}: {fact.text}"
        yield Line(text, "dim", only=fact.only)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, relative to the longest one.

    Args:
        start: Its left end, 0 to 1.
        length: Its length, 0 to 1.
        style: Its colour in a terminal.
        css_class: Its colour in a page.
    """

    start: float
    length: float
    style: str
    css_class: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with a style, or with a different text in a page.

    Args:
        phrase: Its text in a terminal.
        style: Style of the whole cell in a terminal.
        page: Its text in a page; None for the same text.
    """

    phrase: Phrase
    style: str = ""
    _: KW_ONLY
    page: str | None = None


AnyCell = str | Cell | Bar
TOO_BIG = Cell("too big", style="red", page="too big for its memory")
"""The cell of a device whose memory the step exceeds."""


def cell_text(cell: AnyCell, medium: Medium = Medium.TERMINAL) -> str:
    """Return the text of a cell without styles; empty for a drawn cell."""
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
        page_header: Its heading in a page, if different.
        is_number: Whether to align it as numbers.
        only: The only medium that shows it; None for both.
        optional: 0 to show it always; other columns are shown if a terminal has room, lowest number
            first.
        least: Minimum width in characters to which long cells are wrapped; 0 for no wrapping.
        style: Style in a terminal.
    """

    header: str
    cells: Sequence[AnyCell]
    _: KW_ONLY
    page_header: str | None = None
    is_number: bool = False
    only: Medium | None = None
    optional: int = 0
    least: int = 0
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. If the terminal is too narrow, the last columns are put below the first ones.

    Args:
        columns: Columns from left to right; the first names the rows.
        caption: Caption in a page.
        note: Remark for readers of a page.
        legend: Meaning of signs, in a terminal.
        marks: CSS class of each row; empty for none.
        has_header: Whether to show headings in a terminal.
        most: Maximum number of rows in a terminal.
        only: The only medium that shows it; None for both.
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
        headings: Headings of the columns.
        rows: Rows with one cell for each heading.
        numbers: One character for each column: ``n`` for numbers, else a space.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    return tuple(
        Column(heading, cells, is_number=mark == "n")
        for heading, cells, mark in zip(
            headings, columns, numbers.ljust(len(headings)), strict=True
        )
    )


def evenly_spread(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    """Return at most ``most`` evenly spaced items, including the first and the last."""
    if len(items) <= most:
        return items
    last = len(items) - 1
    return [items[round(number * last / (most - 1))] for number in range(most)]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of a diff."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Markdown:
    """Markdown text of our own, for a terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Both timelines of a step.

    Args:
        spans: Spans on both; the last ends after 0.
        description: Description for screen readers.
    """

    spans: tuple[TimelineSpan, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; a terminal shows a blank line before it.

    Args:
        title: Its heading.
        blocks: Its content.
        heading: Its heading in a terminal, if different; empty for none.
        style: Style of the heading in a terminal.
        is_list: Whether its lines are list items in a page.
        only: The only medium that shows it; None for both.
    """

    title: str
    blocks: Sequence[Block]
    _: KW_ONLY
    heading: str | None = None
    style: str = "bold"
    is_list: bool = False
    only: Medium | None = None


Block = Line | Table | Code | Markdown | Chart | Timeline | Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report.

    Args:
        title: Title of the page.
        answers: The answer in words, the most important sentence first.
        before: Blocks to read before the answer.
        warnings: Warnings that may reverse the answer.
        facts: The run and its machine.
        blocks: Everything else.
        charts: Its charts, for an image; None for a kind of report without charts.
        command: The command that makes the report again; empty if it is not known.
        interval_percent: Coverage of the intervals, in percent.
    """

    title: str
    answers: Sequence[Line] = ()
    before: Sequence[Block] = ()
    warnings: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    blocks: Sequence[Block] = ()
    charts: tuple[Chart, ...] | None = None
    command: str = ""
    interval_percent: int = 90
