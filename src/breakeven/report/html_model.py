"""A page as values: what the template lays out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from breakeven.errors import Caveat
from breakeven.report.chart_svg import SvgChart
from breakeven.report.explain_svg import SvgTimeline
from breakeven.report.text import printable, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBar:
    """A bar beside the name of a row; the table has the same figure as text.

    Args:
        start: Where it begins, 0 to 1.
        length: How long it is, 0 to 1.
        css_class: Its colour.
    """

    start: float
    length: float
    css_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table.

    Args:
        caption: What it shows.
        headings: Of the columns.
        are_numbers: Which columns are aligned as numbers.
        rows: Cells as text; the first cell names the row.
        marks: A word for each row that the style sheet knows; empty for none.
        note: What a reader must know; may be empty.
        bars: One for each row, or none at all.
    """

    caption: str
    headings: tuple[str, ...]
    are_numbers: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()
    note: str = ""
    bars: tuple[PageBar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A part of a page.

    Args:
        title: Its heading.
        level: Of the heading: 2, or 3 within the section before.
        paragraphs: Sentences above the rest.
        items: A list.
        tables: Tables.
        charts: Charts.
        timeline: Both timelines of a step.
    """

    title: str
    level: int = 2
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    tables: tuple[PageTable, ...] = ()
    charts: tuple[SvgChart, ...] = ()
    timeline: SvgTimeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report.

    Args:
        title: Of the document.
        answers: The answer in words, the most important sentence first.
        warnings: What may turn the answer itself.
        facts: What was run, and where.
        sections: Everything else.
    """

    title: str
    answers: tuple[str, ...]
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    sections: tuple[PageSection, ...]


def caveat_section(caveats: Mapping[Caveat, tuple[str, ...]]) -> tuple[PageSection, ...]:
    """Return the section of caveats; none where there are none.

    Args:
        caveats: With the names that each holds for; none where it holds for all.
    """
    if not caveats:
        return ()
    rows = tuple(
        (
            printable(caveat.code, 60),
            printable(caveat.message, 600),
            shorten(", ".join(names), 200) if names else "all",
        )
        for caveat, names in caveats.items()
    )
    table = PageTable(
        caption="Reasons to trust a figure less",
        headings=("code", "what it is", "holds for"),
        are_numbers=(False, False, False),
        rows=rows,
    )
    return (PageSection(title="Caveats", tables=(table,)),)
