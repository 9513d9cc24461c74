"""A page of the documentation: errors by split, protocol and peer, with the plots beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from breakeven.report.text import printable
from breakeven.report.validation_peers import OTHER_SETS, beside_published
from breakeven.report.validation_text import (
    GROUPING_TITLES,
    HEADERS,
    PROTOCOL_SENTENCES,
    PROTOCOL_TITLES,
    SHOWN_GROUPINGS,
    counted,
    headline,
    percent,
    signed_percent,
    summary_cells,
    unpredicted_reasons,
    warning,
    worst_rows,
)
from breakeven.units import format_duration
from breakeven.verdict import AccuracyReport, AccuracySummary, LeaveOut

_PAGE_GROUPINGS = (*SHOWN_GROUPINGS, "phase", "architecture", "device", "workload")

_HOW_TO_READ = """\
Predicted times of whole steps, beside measured ones that others published. **Error** is
|predicted / measured - 1|; **bias** is the geometric mean of predicted / measured, minus 1: `+` is
too slow. **In 90 %** is the share of rows whose 90 % interval holds the measured time; a row that
could not be predicted counts as missed. **Right GPU** is the share of pairs of rows, equal in all
but the device and more than 20 % apart, of which the faster device is predicted to be faster.
Fewer than ten rows have no P90.

What these figures do not show: a GPU that is left out may have relatives with its chip that are
not (an RTX 2080 Ti teaches a TITAN RTX); the four figures that scale the intervals, and the prior
widths of the effects, were chosen on the very errors of leaving out GPUs and model families; and
the prediction of a row knows its host, framework and kind of copy, as the table tells them.
"""


def plot_name(protocol: LeaveOut) -> str:
    """Return the file name of the plot of a protocol."""
    return f"accuracy-{protocol}.svg"


def validation_markdown(
    reports: Sequence[AccuracyReport], *, plots: Mapping[LeaveOut, str], command: str
) -> str:
    """Return the page about one or more validations, one section for each.

    Args:
        reports: Each with a protocol of its own.
        plots: Address of the plot of each protocol that has one, relative to the page.
        command: The command that writes this page, for its first line.

    Raises:
        ValueError: There is no report, or two have the same protocol.
    """
    protocols = [report.protocol for report in reports]
    if not reports or len(set(protocols)) < len(protocols):
        raise ValueError(f"one report per protocol is needed, not {protocols}")
    lines = [f"<!-- Written by `{command}`; do not edit by hand. -->\n", "# Accuracy\n"]
    lines.append(_HOW_TO_READ)
    for report in reports:
        lines += _report_section(report, plots.get(report.protocol))
    return "\n".join(lines).rstrip() + "\n"


def _report_section(report: AccuracyReport, plot: str | None) -> Iterator[str]:
    title = PROTOCOL_TITLES[report.protocol]
    yield f"## {title}\n"
    yield f"{PROTOCOL_SENTENCES[report.protocol]} {headline(report)}\n"
    seen = warning(report)
    if seen is not None:
        yield f"**{seen}**\n"
    if plot is not None:
        yield (
            "![Predicted against measured time of each row, both axes logarithmic, with a band "
            f"of ±20 %]({plot})\n"
        )
    groups = {"all rows": report.overall}
    yield from _summary_table("", groups)
    for by in _PAGE_GROUPINGS:
        if by == "split" or len(report.summary[by]) > 1:
            yield from _summary_table(f"by {GROUPING_TITLES[by]}", report.summary[by])
    yield from _published_table(report)
    yield from _worst_table(report)
    yield from _reasons(report)


def _summary_table(title: str, groups: dict[str, AccuracySummary]) -> Iterator[str]:
    yield _row((title, *HEADERS))
    yield "| --- " + "| ---: " * len(HEADERS) + "|"
    for group, summary in groups.items():
        yield _row((group, *summary_cells(summary)))
    yield ""


def _published_table(report: AccuracyReport) -> Iterator[str]:
    yield "### What others publish\n"
    yield f"{OTHER_SETS}\n"
    yield _row(("predictor", "published", "measured on", "nearest rows here", "mean", "median"))
    yield "| --- " * 4 + "| ---: " * 2 + "|"
    for own in beside_published(report):
        published = own.published
        yield _row(
            (
                f"{published.name} ({published.source})",
                published.figure,
                published.measured_on,
                f"{published.nearest_rows}, n = {own.num_rows:,}",
                percent(own.mean_error_fraction),
                percent(own.median_error_fraction),
            )
        )
    yield ""


def _worst_table(report: AccuracyReport) -> Iterator[str]:
    rows = worst_rows(report)
    if not rows:
        return
    yield f"### The {counted(len(rows), 'row')} furthest off\n"
    yield _row(("case", "workload", "phase", "device", "precision", "measured", "error"))
    yield "| --- " * 5 + "| ---: " * 2 + "|"
    for row in rows:
        yield _row(
            (
                row.case_id,
                f"`{row.workload}`",
                row.phase,
                row.device,
                row.precision,
                format_duration(row.value_ns),
                signed_percent(row.error_fraction),
            )
        )
    yield ""


def _reasons(report: AccuracyReport) -> Iterator[str]:
    reasons = unpredicted_reasons(report.rows)
    if not reasons:
        return
    yield "### Rows not predicted\n"
    yield _row(("rows", "code", "reason"))
    yield "| ---: | --- | --- |"
    for code, reason, count in reasons:
        yield _row((f"{count:,}", f"`{code}`", reason))
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"
