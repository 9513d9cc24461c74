"""A page as one file: everything it needs is in it, and it can ask the network for nothing."""

from __future__ import annotations

import base64
import hashlib

from breakeven.report.chart_style import PUBLISHED_PATH, colours
from breakeven.report.chart_svg import WIDTH
from breakeven.report.html_model import Page
from breakeven.report.text import printable

_PACKAGE = "breakeven.report"
_FOLDER = "html"
_MAX_WORD_CHARACTERS = 28


def render_page(page: Page) -> bytes:
    r"""Return a page as HTML in UTF-8.

    Every text is escaped, and what could steer a reader's eye (control characters, marks of text
    direction, bytes that are not UTF-8) is written out as ``\x1b``. The page's own policy lets
    run its one script and style sheet, by their digests, and nothing else.

    Args:
        page: What to show.
    """
    # Not with the module: a command without a page must not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_PACKAGE, _FOLDER)
    environment = Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    style = _series_css() + loader.get_source(environment, "style.css")[0]
    script = loader.get_source(environment, "chart.js")[0]
    text = environment.get_template("page.html.j2").render(
        page=page,
        policy=_policy(script=script, style=style),
        style=_Verbatim(style),
        script=_Verbatim(script),
        star=PUBLISHED_PATH,
        width=WIDTH,
        has_long_word=_has_long_word,
    )
    return text.encode()


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


def _series_css() -> str:
    """Return the colours of the series, for light paper and print, and for dark paper."""

    def rules(*, is_dark: bool) -> str:
        return "".join(
            f".c{number}{{--c:{colour}}}\n"
            for number, colour in enumerate(colours(is_dark=is_dark))
        )

    return (
        rules(is_dark=False)
        + "@media screen and (prefers-color-scheme: dark) {\n"
        + rules(is_dark=True)
        + "}\n"
    )
