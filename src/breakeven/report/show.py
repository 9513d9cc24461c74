"""A report as what is looked at: at a terminal, as a page, or as an image of its charts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console

from breakeven.errors import BreakevenError, UsageError
from breakeven.report.backends.html import render_page, render_svg
from breakeven.report.backends.terminal import render
from breakeven.report.charts.png import chart_png, ensure_can_draw
from breakeven.report.kinds import kind_of
from breakeven.report.text import printable

_PAGES = (".html", ".htm")


def show(
    report: msgspec.Struct, console: Console, *, hints: Sequence[str] = (), **options: object
) -> None:
    """Write a report to a console, as wide as that is.

    Args:
        report: What a command found out.
        console: Where to; its size, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
        options: What the builder of its kind takes besides.
    """
    kind = kind_of(report)
    assert kind.build is not None
    documents = list(kind.parts(report)) if kind.parts else [kind.build(report, **options)]
    for number, document in enumerate(documents, start=1):
        is_last = number == len(documents)
        render(document, console, hints=hints if is_last else ())
        if not is_last:
            console.line()


def ensure_can_chart(suffix: str) -> None:
    """Check that a report can be written as such a file, before the work whose result it shows.

    Args:
        suffix: ``.png``, ``.svg`` or ``.html``, in any case.

    Raises:
        UsageError: Nothing is written with such a suffix.
        BreakevenError: matplotlib is needed for it and not installed.
    """
    if suffix.lower() == ".png":
        ensure_can_draw()
    elif suffix.lower() not in (".svg", *_PAGES):
        raise UsageError(
            f"no chart is written as {printable(suffix, 40) or 'a file without suffix'}",
            hint="name a file that ends in .html, .png or .svg",
        )


def chart_document(report: msgspec.Struct, suffix: str) -> bytes:
    """Return a report as the bytes of a file: charts alone as an image, everything as a page.

    Args:
        report: What a command found out.
        suffix: ``.png``, ``.svg`` or ``.html``, in any case.

    Raises:
        UsageError: Nothing, or nothing of this report, is written with such a suffix.
        BreakevenError: matplotlib is needed and not installed, or there is nothing to draw.
    """
    kind = kind_of(report)
    assert kind.build is not None
    document = kind.build(report)
    if suffix.lower() in _PAGES:
        return render_page(document)
    if document.charts is None:
        raise UsageError(
            f"a report of breakeven {kind.command} is no chart: it is written as a page",
            hint="name a file that ends in .html",
        )
    ensure_can_chart(suffix)
    if not document.charts:
        raise BreakevenError(
            "there is no step time to draw", hint="the same with .html shows everything else"
        )
    draw = chart_png if suffix.lower() == ".png" else render_svg
    return draw(document.charts, heading=document.heading)
