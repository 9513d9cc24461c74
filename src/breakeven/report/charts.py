"""A report as a file that is looked at: an image of its charts, or a page."""

from __future__ import annotations

from breakeven.errors import BreakevenError, UsageError
from breakeven.report.chart_build import report_charts
from breakeven.report.chart_image import chart_image, ensure_can_draw
from breakeven.report.html_check import check_page
from breakeven.report.html_explain import explain_page
from breakeven.report.html_page import render_page
from breakeven.report.html_sweep import sweep_page
from breakeven.report.html_systems import systems_page
from breakeven.report.text import printable
from breakeven.verdict import (
    SYSTEMS_SCHEMA_VERSION,
    CheckReport,
    ExplainReport,
    SweepReport,
    SystemReport,
    SystemsReport,
)

AnyReport = CheckReport | ExplainReport | SweepReport | SystemReport | SystemsReport
_IMAGES = {".png": "png", ".svg": "svg"}
_PAGES = (".html", ".htm")


def ensure_can_chart(suffix: str) -> None:
    """Check that a report can be written as such a file, before the work whose result it shows.

    Args:
        suffix: ``.png``, ``.svg`` or ``.html``, in any case.

    Raises:
        UsageError: Nothing is written with such a suffix.
        BreakevenError: matplotlib is needed for it and not installed.
    """
    if suffix.lower() in _IMAGES:
        ensure_can_draw()
    elif suffix.lower() not in _PAGES:
        raise UsageError(
            f"no chart is written as {printable(suffix, 40) or 'a file without suffix'}",
            hint="name a file that ends in .html, .png or .svg",
        )


def chart_document(report: AnyReport, suffix: str) -> bytes:
    """Return a report as the bytes of a file: charts alone as an image, everything as a page.

    Args:
        report: What a command found out.
        suffix: ``.png``, ``.svg`` or ``.html``, in any case.

    Raises:
        UsageError: Nothing, or nothing of this report, is written with such a suffix.
        BreakevenError: matplotlib is needed and not installed, or there is nothing to draw.
    """
    if suffix.lower() in _PAGES:
        return _page(report)
    if isinstance(report, ExplainReport):
        raise UsageError(
            "an explanation is no chart: it is written as a page",
            hint="name a file that ends in .html",
        )
    ensure_can_chart(suffix)
    charts = report_charts(report)
    if not charts:
        raise BreakevenError(
            "there is no step time to draw", hint="the same with .html shows everything else"
        )
    return chart_image(charts, _IMAGES[suffix.lower()], heading=_heading(report))


def _page(report: AnyReport) -> bytes:
    match report:
        case CheckReport():
            page = check_page(report)
        case ExplainReport():
            page = explain_page(report)
        case SweepReport():
            page = sweep_page(report)
        case SystemReport():
            systems = SystemsReport(schema_version=SYSTEMS_SCHEMA_VERSION, systems=(report,))
            page = systems_page(systems)
        case SystemsReport():
            page = systems_page(report)
    return render_page(page)


def _heading(report: CheckReport | SweepReport | SystemReport | SystemsReport) -> str:
    match report:
        case CheckReport() | SweepReport():
            return report.target
        case SystemReport():
            return report.title
        case SystemsReport():
            return ", ".join(system.name for system in report.systems)
