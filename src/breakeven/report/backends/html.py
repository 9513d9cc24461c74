"""A document as one page, or its charts as an SVG: all they need is within, none asks a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources

from breakeven.report.charts.causes import timeline_end_ns
from breakeven.report.charts.model import Chart, colours
from breakeven.report.charts.svg import CHART_FUNCTIONS, WIDTH, SvgChart, SvgTimeline
from breakeven.report.document import Block, Document, Timeline
from breakeven.report.phrase import Medium, page_lines
from breakeven.report.table import page_text
from breakeven.report.text import printable, shorten

_PACKAGE = "breakeven.report"
_FOLDER = "html"
_MAX_WORD_CHARACTERS = 28
_TITLE_HEIGHT = 46
_KEY_COLUMNS, _KEY_HEIGHT = 3, 20
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
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _render(
        "page.html.j2",
        document=document,
        facts=[fact for fact in document.facts if fact.only is not Medium.TERMINAL],
        policy=policy,
        style=_Verbatim(style),
        script=_Verbatim(script),
        is_for_terminal=_is_for_terminal,
        has_long_word=_has_long_word,
        page_lines=page_lines,
        page_text=page_text,
        printable=printable,
        view_of=SvgChart,
        timeline_of=lambda block: SvgTimeline(block.spans, block.description),
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
    for view in map(SvgChart, charts):
        places.append((height, view))
        num_rows = -(-len(view.legend) // _KEY_COLUMNS)
        height += _TITLE_HEIGHT + view.height + 6 + num_rows * _KEY_HEIGHT + 20
    light = dict(re.findall(r"--(\w+): (#\w+);", _source("style.css").partition("}")[0]))
    style = _IMAGE_CSS + _series_css(is_dark=False).replace("--c:", "color:") + _source("plot.css")
    return _render(
        "charts.svg.j2",
        heading=shorten(heading, 100),
        places=places,
        height=height,
        title_height=_TITLE_HEIGHT,
        key_columns=_KEY_COLUMNS,
        key_height=_KEY_HEIGHT,
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
    every = {"width": WIDTH, "shorten": shorten, **CHART_FUNCTIONS}
    return environment.get_template(template).render({**every, **values}).encode()


def _source(name: str) -> str:
    return (resources.files(_PACKAGE) / _FOLDER / name).read_text("utf-8")


def _is_for_terminal(block: Block) -> bool:
    is_empty = isinstance(block, Timeline) and timeline_end_ns(block.spans) <= 0
    return block.only is Medium.TERMINAL or is_empty


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


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _series_css(*, is_dark: bool) -> str:
    """Return the colours of the series on light or on dark paper."""
    every = enumerate(colours(is_dark=is_dark))
    return "".join(f".c{number}{{--c:{colour}}}\n" for number, colour in every)
