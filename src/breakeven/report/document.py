"""A report as values that every back-end lays out: terminal, HTML and Markdown.

A builder makes one document for each kind of report. What only one of the media has room or need
for says so by ``only``; everything else is said once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum

from breakeven.errors import Caveat
from breakeven.report.charts.model import Chart
from breakeven.report.text import printable, shorten
from breakeven.verdict import TimelineSpan


class Medium(Enum):
    """Where a document is read."""

    TERMINAL = "terminal"
    PAGE = "page"  # HTML or Markdown


# Text, or parts of it, each plain or with a style of the terminal.
Phrase = str | tuple[str | tuple[str, str], ...]


def plain(phrase: Phrase) -> str:
    """Return a phrase without its styles."""
    if isinstance(phrase, str):
        return phrase
    return "".join(part if isinstance(part, str) else part[0] for part in phrase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file, whose number survives whatever has to be shortened.

    Args:
        file: Its path.
        line: Its number; None for the whole file.
    """

    file: str
    line: int | None

    @property
    def end(self) -> str:
        """Return what survives any shortening."""
        return "" if self.line is None else f":{self.line}"

    def text(self, room: int | None = None) -> str:
        """Return ``file:line`` in one piece, which a terminal makes a link."""
        path = printable(self.file, None)
        return (path if room is None else shorten(path, max(room - len(self.end), 8))) + self.end


def place_of(file: str | None, line: int | None) -> Place | None:
    """Return a place, where there is one."""
    return None if file is None else Place(file=file, line=line)


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence or fact of its own.

    Args:
        phrase: What it says.
        style: At a terminal.
        indent: Characters before it there.
        place: Of what it says.
        beneath: Indent of the place where it has no room behind the phrase; None puts it in front.
        only: The one medium that has it.
        is_whole: Whether it is left in one piece, such as an address, however long it is.
    """

    phrase: Phrase
    style: str = ""
    indent: int = 0
    place: Place | None = None
    beneath: int | None = None
    only: Medium | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """What was run, or where.

    Args:
        name: Of the fact.
        text: What it is.
        is_bare: Whether the text alone says what it is, at a terminal.
        only: The one medium that has it.
    """

    name: str
    text: str
    is_bare: bool = False
    only: Medium | None = None


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


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences one below the other.

    Args:
        lines: The sentences.
        is_list: Whether they are items of a list, in a page.
        only: The one medium that has them.
    """

    lines: tuple[Line, ...]
    is_list: bool = False
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A short text under a name.

    Args:
        label: The name, such as a code.
        text: What it says.
        remark: What it holds for; empty for everything.
        count: How often, before the name.
    """

    label: str
    text: str
    remark: str = ""
    count: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Notes: lines at a terminal, a table in a page.

    Args:
        notes: The notes.
        caption: Of the table.
        headings: Of the table: for name, text and remark, or for count, name and text.
        most: Notes that a terminal shows.
        rest: What it says of the others, where that is not how many they are.
        only: The one medium that has them.
    """

    notes: Sequence[Note]
    caption: str
    headings: tuple[str, str, str]
    most: int = 10
    rest: str = ""
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of a change of a file."""

    lines: tuple[str, ...]
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Markdown:
    """Text of our own in Markdown."""

    text: str
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart."""

    chart: Chart
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Both timelines of a step.

    Args:
        spans: What happens on them.
        description: What they show, for those who do not see it.
    """

    spans: tuple[TimelineSpan, ...]
    description: str
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image beside a page.

    Args:
        address: Relative to the page.
        description: What it shows.
    """

    address: str
    description: str
    only: Medium | None = Medium.PAGE


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; at a terminal a blank line stands before it.

    Args:
        title: Its heading.
        blocks: What is in it.
        heading: Its heading at a terminal, where that is another; empty for none.
        style: Of the heading there.
        level: Of the heading in a page: 2, or more within another section.
        only: The one medium that has it.
    """

    title: str
    blocks: Sequence[Block]
    _: KW_ONLY
    heading: str | None = None
    style: str = "bold"
    level: int = 2
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """Two sections that stand side by side where there is room."""

    left: Section
    right: Section
    only: Medium | None = None


Block = Lines | Table | Notes | Code | Markdown | Drawing | Timeline | Image | Section | Beside


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
        charts: Its charts, for an image of them; None for what is no chart.
        heading: What was run, above such an image.
        interval_percent: What intervals hold.
    """

    title: str
    answers: Sequence[Line] = ()
    before: Sequence[Block] = ()
    warnings: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    blocks: Sequence[Block] = ()
    charts: tuple[Chart, ...] | None = None
    heading: str = ""
    interval_percent: int = 90


def caveat_section(
    caveats: Mapping[Caveat, str], *, most: int = 10, level: int = 2
) -> tuple[Section, ...]:
    """Return the section of caveats; none where there are none.

    Args:
        caveats: With what each holds for; empty for everything.
        most: Caveats that a terminal shows.
        level: Of the heading, in a page.
    """
    if not caveats:
        return ()
    notes = Notes(
        notes=tuple(
            Note(printable(caveat.code, 40), printable(caveat.message, 600), shorten(remark, 200))
            for caveat, remark in caveats.items()
        ),
        caption="Reasons to trust a figure less",
        headings=("code", "what it is", "holds for"),
        most=most,
    )
    return (Section(title="Caveats", blocks=(notes,), level=level),)
