"""A document as one page, or its charts as an SVG: all they need is within, none asks a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import assert_never

from breakeven.report.charts.model import PUBLISHED_PATH, Chart, colours
from breakeven.report.charts.svg import WIDTH, SvgChart, svg_chart
from breakeven.report.charts.timeline import svg_timeline
from breakeven.report.document import (
    Beside,
    Block,
    Code,
    Document,
    Drawing,
    Image,
    Lines,
    Markdown,
    Notes,
    Section,
    Timeline,
)
from breakeven.report.phrase import Line, Medium, plain
from breakeven.report.table import Bar, Cell, Column, Table, page_text
from breakeven.report.text import printable, shorten

_PACKAGE = "breakeven.report"
_FOLDER = "html"
_MAX_WORD_CHARACTERS = 28
_TITLE_HEIGHT = 46
_IMAGE_CSS = """\
.paper { fill: var(--paper); }
.heading { font-weight: 600; }
svg .heading, svg .title { font-size: 15px; }
"""


def render_page(document: Document) -> bytes:
    r"""Return a document as HTML in UTF-8.

    Every text is escaped, and what could steer a reader's eye (control characters, marks of text
    direction, bytes that are not UTF-8) is written out as ``\x1b``. The page's own policy lets
    run its one script and style sheet, by their digests, and nothing else.

    Args:
        document: What to show.
    """
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_series_css(is_dark=True)}}}\n"
    style = _series_css(is_dark=False) + dark + _source("style.css") + _source("plot.css")
    script = _source("chart.js")
    return _render(
        "page.html.j2",
        document=document,
        before=list(_sections(document.before)),
        answers=list(page_lines(document.answers)),
        facts=[fact for fact in document.facts if fact.only is not Medium.TERMINAL],
        sections=list(_sections(document.blocks)),
        policy=_policy(script=script, style=style),
        style=_Verbatim(style),
        script=_Verbatim(script),
        has_long_word=_has_long_word,
    )


def render_svg(charts: Sequence[Chart], *, heading: str) -> bytes:
    """Return charts below one another as one image, the same for the same figures.

    It is drawn on light paper, and without what only browsers know, such as variables of a style.

    Args:
        charts: At least one.
        heading: What was run.
    """
    places: list[tuple[float, SvgChart]] = []
    height = 40.0
    for chart in charts:
        view = svg_chart(chart)
        places.append((height, view))
        height += _TITLE_HEIGHT + view.height_with_legend + 20
    light = dict(re.findall(r"--(\w+): (#\w+);", _source("style.css").partition("}")[0]))
    style = _IMAGE_CSS + _series_css(is_dark=False).replace("--c:", "color:") + _source("plot.css")
    return _render(
        "charts.svg.j2",
        heading=shorten(heading, 100),
        places=places,
        height=height,
        title_height=_TITLE_HEIGHT,
        shorten=shorten,
        style=_Verbatim(
            re.sub(r"var\(--(\w+)\)", lambda name: light.get(name[1], "currentColor"), style)
        ),
    )


def _render(template: str, **values: object) -> bytes:
    # Not with the module: a command without a page must not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, _FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    every = {"star": PUBLISHED_PATH, "width": WIDTH, **values}
    return environment.get_template(template).render(every).encode()


def _source(name: str) -> str:
    return (resources.files(_PACKAGE) / _FOLDER / name).read_text("utf-8")


def page_lines(lines: Sequence[Line]) -> Iterator[str]:
    """Yield lines as a page shows them."""
    for line in lines:
        if line.only is not Medium.TERMINAL:
            text = plain(line.phrase)
            if line.place is not None:
                text = f"{text} ({line.place.text(300)})" if text else line.place.text(300)
            yield text


def page_columns(table: Table) -> list[Column]:
    """Return the columns of a table that have texts in a page."""
    return [
        column
        for column in table.columns
        if column.only is not Medium.TERMINAL and not any(isinstance(c, Bar) for c in column.cells)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a section has: the template lays it out by its kind."""

    kind: str
    content: object


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageTable:
    caption: str
    headings: Sequence[str]
    are_numbers: Sequence[bool]
    rows: Sequence[Sequence[str]]
    marks: Sequence[str]
    bars: Sequence[Bar]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageSection:
    title: str
    level: int
    parts: Sequence[_Part]


def _sections(blocks: Sequence[Block]) -> Iterator[_PageSection]:
    """Yield sections, each followed by those within it; blocks outside of any have no title."""
    loose = [block for block in blocks if not isinstance(block, Section | Beside)]
    if loose:
        yield _PageSection(title="", level=2, parts=list(_parts(loose)))
    for block in blocks:
        if block.only is Medium.TERMINAL:
            continue
        if isinstance(block, Beside):
            yield from _sections((block.left, block.right))
        elif isinstance(block, Section):
            inner = [one for one in block.blocks if isinstance(one, Section | Beside)]
            own = [one for one in block.blocks if not isinstance(one, Section | Beside)]
            yield _PageSection(title=block.title, level=block.level, parts=list(_parts(own)))
            yield from _sections(inner)


def _parts(blocks: Sequence[Block]) -> Iterator[_Part]:
    for block in blocks:
        if block.only is Medium.TERMINAL:
            continue
        match block:
            case Lines(lines, is_list):
                texts = list(page_lines(lines))
                if texts:
                    yield _Part(kind="list" if is_list else "paragraphs", content=texts)
            case Table():
                yield _Part(kind="table", content=_page_table(block))
            case Notes():
                yield _Part(kind="table", content=_page_table(notes_table(block)))
            case Code(lines):
                yield _Part(kind="code", content=tuple(printable(one, 500) for one in lines))
            case Markdown(text):
                yield _Part(kind="paragraphs", content=text.split("\n\n"))
            case Drawing(chart):
                yield _Part(kind="chart", content=svg_chart(chart))
            case Timeline(spans, description):
                view = svg_timeline(spans, description)
                if view is not None:
                    yield _Part(kind="timeline", content=view)
            case Image() | Section() | Beside():  # a page alone cannot hold another file
                continue
            case _:
                assert_never(block)


def notes_table(notes: Notes) -> Table:
    """Return notes as a table."""
    labels = [Cell(note.label, is_code=True) for note in notes.notes]
    texts = [note.text for note in notes.notes]
    if any(note.count for note in notes.notes):
        columns = ([note.count for note in notes.notes], labels, texts)
    else:
        columns = (labels, texts, [note.remark or "all" for note in notes.notes])
    return Table(
        tuple(
            Column(heading, cells, is_number=heading == "rows")
            for heading, cells in zip(notes.headings, columns, strict=True)
        ),
        caption=notes.caption,
    )


def _page_table(table: Table) -> _PageTable:
    columns = page_columns(table)
    bars = [cell for column in table.columns for cell in column.cells if isinstance(cell, Bar)]
    headers = (c.header if c.page_header is None else c.page_header for c in columns)
    return _PageTable(
        caption=table.caption,
        headings=list(headers),
        are_numbers=[column.is_number for column in columns],
        rows=[[page_text(column.cells[n]) for column in columns] for n in range(table.num_rows)],
        marks=table.marks,
        bars=bars,
        note=table.note,
    )


class _Verbatim:
    """Our own style sheet or script, which escaping would break."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __html__(self) -> str:
        return self._text


def _visible(value: object) -> object:
    """Return a value of the template as it may be shown; markup of our own as it is."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return text if text.isprintable() else printable(text, None)


def _has_long_word(text: str) -> bool:
    """Return whether a word must be broken, lest one name makes a table too wide to read."""
    return any(len(word) > _MAX_WORD_CHARACTERS for word in text.split())


def _policy(*, script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _series_css(*, is_dark: bool) -> str:
    """Return the colours of the series on light or on dark paper."""
    every = enumerate(colours(is_dark=is_dark))
    return "".join(f".c{number}{{--c:{colour}}}\n" for number, colour in every)
