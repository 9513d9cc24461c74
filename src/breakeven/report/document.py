"""A report as values that a terminal and a page lay out.

A builder makes one document for each kind of report. What only one of the media has room or need
for says so by ``only``; everything else is said once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from breakeven.report.charts.model import Chart
from breakeven.report.phrase import Fact, Line, Medium
from breakeven.report.table import Table
from breakeven.verdict import TimelineSpan


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


Block = Lines | Table | Code | Markdown | Drawing | Timeline | Image | Section


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
