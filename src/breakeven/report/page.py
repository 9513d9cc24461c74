"""A document as one page, or its charts as an SVG, both without external resources."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources

from breakeven.report.chart import COLOURS, Chart, style_of
from breakeven.report.chart_svg import WIDTH, SvgChart, SvgTimeline
from breakeven.report.document import Document, Medium, cell_text, plain
from breakeven.report.text import printable, shorten

_PACKAGE = "breakeven.report"
_FOLDER = "html"
_SCOPE = "breakeven-report"
_MAX_WORD_CHARACTERS = 28
_TITLE_HEIGHT = 46
_KEY_COLUMNS, _KEY_HEIGHT = 2, 20
_IMAGE_CSS = """\
.paper { fill: var(--paper); }
.heading { font-weight: 600; }
svg .heading, svg .title { font-size: 15px; }
"""


def render_page(document: Document) -> bytes:
    r"""Return a document as HTML in UTF-8.

    Every text is escaped. Control characters, text-direction marks and bytes that are not UTF-8 are
    written as escapes such as ``\x1b``. The page's content security policy allows only its own
    script and style sheet, by their digests.

    Args:
        document: The document to show.
    """
    style, script = _style(), _source("page.js")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests[0].decode()}'; "
        f"style-src 'sha256-{digests[1].decode()}'; base-uri 'none'; form-action 'none'"
    )
    return _page(document, style, policy=policy, script=_Verbatim(script))


def render_part(document: Document) -> str:
    """Return a document as an HTML element for another page, such as a notebook.

    It needs no script. Its style sheet is nested in its own class, so it applies to nothing else.

    Args:
        document: The document to show.
    """
    style = re.sub(r"(?m)^( *)(?::root|body)(?= {)", r"\1&", _style())
    style = f".{_SCOPE}.{_SCOPE} {{\n{style}}}\n"
    # A page may hold several reports: their ids differ as their contents do.
    prefix = f"{_SCOPE}-{hashlib.sha256(repr(document).encode()).hexdigest()[:12]}-"
    return _page(document, style, scope=_SCOPE, prefix=prefix).decode()


def _page(document: Document, style: str, **values: object) -> bytes:
    return render_template(
        "page.html.j2",
        document=document,
        terminal=Medium.TERMINAL,
        page_only=Medium.PAGE,
        style=_Verbatim(style),
        has_long_word=_has_long_word,
        page_text=lambda cell: cell_text(cell, Medium.PAGE),
        plain=plain,
        printable=printable,
        view_of=SvgChart,
        timeline_of=SvgTimeline,
        **{"scope": "", "prefix": "", **values},
    )


def render_svg(charts: Sequence[Chart], *, heading: str) -> bytes:
    """Return one image with the charts stacked vertically; equal figures give equal bytes.

    Colours follow the reader's preference, if the viewer knows media queries. No other feature
    needs a browser, such as CSS variables.

    Args:
        charts: At least one chart.
        heading: The command or target of the run.
    """
    places: list[tuple[float, SvgChart]] = []
    height = 40.0
    for view in (SvgChart(chart.shown) for chart in charts):
        places.append((height, view))
        num_rows = -(-len(view.legend) // _KEY_COLUMNS)
        height += _TITLE_HEIGHT + view.height + 6 + num_rows * _KEY_HEIGHT + 20
    light, dark = (_image_css(is_dark=is_dark) for is_dark in (False, True))
    style = f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
    return render_template(
        "charts.svg.j2",
        heading=shorten(heading, 100),
        places=places,
        height=height,
        title_height=_TITLE_HEIGHT,
        key_columns=_KEY_COLUMNS,
        key_height=_KEY_HEIGHT,
        style=_Verbatim(style),
    )


def render_template(template: str, **values: object) -> bytes:
    """Return a template of this package in UTF-8, with every text escaped.

    Args:
        template: Its file name.
        values: What it shows.
    """
    # Create it on use: commands without a page must not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, _FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    environment.globals.update(width=WIDTH, shorten=shorten, style_of=style_of)
    return environment.get_template(template).render(values).encode()


class _Verbatim:
    """Our own style sheet or script, which must not be escaped."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __html__(self) -> str:
        return self._text


def _visible(value: object) -> object:
    """Return a template value with control characters escaped; our own markup unchanged."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return text if text.isprintable() else printable(text, None)


def _has_long_word(text: str) -> bool:
    """Return whether a word must be broken, because it would make a table too wide."""
    return any(len(word) > _MAX_WORD_CHARACTERS for word in text.split())


def _source(name: str) -> str:
    return (resources.files(_PACKAGE) / _FOLDER / name).read_text("utf-8")


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_series_css(is_dark=True)}}}\n"
    return _series_css(is_dark=False) + dark + _source("style.css") + _source("plot.css")


def _image_css(*, is_dark: bool) -> str:
    """Return the style of an image, with colours in place of the page's variables."""
    colours = dict(re.findall(r"--(\w+): (#\w+);", _source("style.css").split("}")[is_dark]))
    style = (
        _IMAGE_CSS + _series_css(is_dark=is_dark).replace("--c:", "color:") + _source("plot.css")
    )
    return re.sub(r"var\(--(\w+)\)", lambda name: colours.get(name[1], "currentColor"), style)


def _series_css(*, is_dark: bool) -> str:
    """Return the colours of the series, on light or on dark paper."""
    return "".join(f".c{number}{{--c:{pair[is_dark]}}}\n" for number, pair in enumerate(COLOURS))
