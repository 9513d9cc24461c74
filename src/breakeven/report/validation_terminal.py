"""A validation for a person at a terminal: the answer, errors by group, what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.text import printable, shorten
from breakeven.report.validation_peers import OTHER_SETS, OwnFigure, beside_published
from breakeven.report.validation_text import (
    GROUPING_TITLES,
    HEADERS,
    PROTOCOL_SENTENCES,
    SHOWN_GROUPINGS,
    counted,
    headline,
    p90_percent,
    percent,
    signed_percent,
    summary_cells,
    unpredicted_reasons,
    warning,
    worst_rows,
)
from breakeven.units import format_duration
from breakeven.verdict import AccuracyReport, AccuracySummary

_MAX_REASONS = 12
_GAP = 2
_MIN_NAME_CHARACTERS = 16
_MAX_NAME_CHARACTERS = 40
# From the right: what a narrow terminal can do without.
_DISPENSABLE = ("right GPU", "mean", "bias")


def render_validation(
    report: AccuracyReport, console: Console, *, hints: Sequence[str] = ()
) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven validate`` found out.
        console: Where to; its width, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    _say(console, Text(headline(report), style="bold"))
    seen = warning(report)
    if seen is not None:
        _say(console, Text(f"Careful: {seen}", style="yellow"))
    _say(console, Text(f"{printable(report.table, 200)} · {_protocol(report)}", style="dim"))
    console.line()
    console.print(_summary_table(report, console))
    _say(console, Text(_legend(), style="dim"))
    _render_worst(report, console)
    _render_unpredicted(report, console)
    _render_published(report, console)
    if hints:
        console.line()
        for hint in hints:
            _say(console, Text(printable(hint), style="dim"))


def _say(console: Console, text: Text, indent: int = 0) -> None:
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)


def _protocol(report: AccuracyReport) -> str:
    sentence = PROTOCOL_SENTENCES[report.protocol]
    return sentence[0].lower() + sentence[1:]


def _legend() -> str:
    return (
        "error: |predicted / measured - 1|   bias: + is too slow   in 90 %: rows that the interval "
        "holds, those not predicted counted as missed   right GPU: of two devices that differ by "
        "more than 20 %, the faster one is predicted to be faster"
    )


def _summary_table(report: AccuracyReport, console: Console) -> Table:
    sections = [
        (by, report.summary[by]) for by in ("all", *SHOWN_GROUPINGS) if _is_shown(report, by)
    ]
    lines = [line for by, groups in sections for line in _section(by, groups)]
    kept = list(HEADERS)
    widths = {
        header: max(len(header), *(len(cells[index]) for _, cells in lines if cells))
        for index, header in enumerate(HEADERS)
    }

    def room() -> int:
        return console.width - sum(widths[header] + _GAP for header in kept)

    for header in _DISPENSABLE:
        if room() < _MIN_NAME_CHARACTERS + _GAP:
            kept.remove(header)
    longest = max(len(name) for name, _ in lines)
    # A line that rich has to fold would be harder to read than a name that is cut.
    name_characters = max(min(room() - _GAP, longest, _MAX_NAME_CHARACTERS), 1)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for header in kept:
        table.add_column(header, justify="right", no_wrap=True)
    for name, cells in lines:
        shown = (
            [cell for header, cell in zip(HEADERS, cells, strict=True) if header in kept]
            if cells
            else []
        )
        style = "" if cells else "dim"
        table.add_row(Text(shorten(name, name_characters), style=style), *shown)
    return table


def _is_shown(report: AccuracyReport, by: str) -> bool:
    """Return whether a grouping says more than the line of all rows."""
    return by in ("all", "split") or len(report.summary[by]) > 1


def _section(by: str, groups: dict[str, AccuracySummary]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if by == "all":
        yield "all rows", summary_cells(groups["all"])
        return
    yield f"by {GROUPING_TITLES[by]}", ()
    for group, summary in groups.items():
        yield f"  {printable(group)}", summary_cells(summary)


def _render_worst(report: AccuracyReport, console: Console) -> None:
    rows = worst_rows(report)
    if not rows:
        return
    console.line()
    _say(console, Text(f"The {counted(len(rows), 'row')} furthest off", style="bold"))
    errors = [signed_percent(row.error_fraction) for row in rows]
    indent = 2 + max(len(error) for error in errors) + _GAP
    for row, error in zip(rows, errors, strict=True):
        assert row.prediction is not None
        measured = format_duration(row.value_ns)
        predicted = format_duration(row.prediction.estimate.value_ns)
        head = f"{error.rjust(indent - 2 - _GAP)}  {printable(row.case_id, 40)}  "
        _say(console, Text(f"{head}{measured} measured, {predicted} predicted"), 2)
        workload = printable(row.workload, None)
        facts = (row.device, row.precision, row.phase, f"batch {row.batch_size:,}")
        beneath = " · ".join(printable(fact) for fact in facts)
        room = max(console.width - indent - len(beneath) - 3, 12)
        _say(console, Text(f"{shorten(workload, room)} · {beneath}", style="dim"), indent)


def _render_unpredicted(report: AccuracyReport, console: Console) -> None:
    reasons = unpredicted_reasons(report.rows)
    if not reasons:
        return
    console.line()
    title = f"{counted(report.overall.num_unpredicted, 'row')} not predicted"
    _say(console, Text(title, style="bold"))
    for code, reason, count in reasons[:_MAX_REASONS]:
        text = Text.assemble(
            f"{count:,}× ", (printable(code, 40), "yellow"), f"  {printable(reason, 300)}"
        )
        _say(console, text, 2)
    if len(reasons) > _MAX_REASONS:
        rest = sum(count for _, _, count in reasons[_MAX_REASONS:])
        _say(console, Text(f"and {counted(rest, 'row')} for other reasons, listed by --json"), 2)


def _render_published(report: AccuracyReport, console: Console) -> None:
    if report.overall.num_unpredicted == report.overall.num_rows:
        return
    console.line()
    _say(console, Text("What others publish", style="bold"))
    for own in beside_published(report):
        published = own.published
        head = Text.assemble((published.name, "magenta"), f"  {published.figure}")
        _say(console, head, 2)
        _say(console, Text(f"on {published.measured_on} ({published.source})", style="dim"), 4)
        _say(console, Text(f"here: {_own_figures(own)}"), 4)
    _say(console, Text(OTHER_SETS, style="dim"), 2)


def _own_figures(own: OwnFigure) -> str:
    """Return our errors in the group nearest to a published figure."""
    where = own.published.nearest_rows
    if own.num_rows == 0:
        return f"{where}: no such rows"
    return (
        f"{where}: {percent(own.mean_error_fraction)} mean, "
        f"{percent(own.median_error_fraction)} median, "
        f"{p90_percent(own.p90_error_fraction, own.num_rows)} P90 "
        f"(n = {own.num_rows:,})"
    )
