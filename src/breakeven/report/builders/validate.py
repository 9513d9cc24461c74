"""A validation at a terminal: the answer, errors by group, what is furthest off and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.text import plural, printable, shorten
from breakeven.units import format_digits, format_duration
from breakeven.verdict import AccuracyReport, AccuracySummary, LeaveOut, RowResult, Unpredictable

PROTOCOL_SENTENCES: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "The calibration that ships with breakeven predicts every row.",
    LeaveOut.GPU: "Leave one GPU out: each GPU is predicted by a calibration made without any "
    "figure of it.",
    LeaveOut.MODEL: "Leave one model family out: each family is predicted by a calibration made "
    "without any row of it.",
    LeaveOut.SOURCE: "Leave one source out: the steps of each source are predicted by a "
    "calibration made without any figure from it.",
}
# The groupings that a person reads; all of them are in the JSON document.
SHOWN_GROUPINGS = (
    "split", "precision", "era", "compile", "attention", "regime", "bound", "source", "num_devices",
)  # fmt: skip
GROUPING_TITLES: Mapping[str, str] = {
    "all": "all",
    "split": "split",
    "precision": "precision",
    "compile": "mode of torch.compile",
    "attention": "attention",
    "memory_format": "memory format",
    "family": "model family",
    "era": "era",
    "regime": "measured time",
    "bound": "bound",
    "source": "source",
    "num_devices": "devices per step",
    "device": "device",
    "architecture": "architecture",
    "workload": "workload",
    "phase": "phase",
}

HEADERS = ("rows", "median", "mean", "P90", "bias", "in 90 %", "right GPU")
# Fewer rows than this have no 90th percentile worth the name.
_LEAST_ROWS_FOR_P90 = 10
# As many as a person reads one by one.
_NUM_WORST = 10
# Of rows that fail alike, as many are named.
_NUM_NAMED = 3


_MAX_REASONS = 12
_LEGEND = (
    "error: |predicted / measured - 1|   bias: + is too slow   in 90 %: rows that the interval "
    "holds, those not predicted counted as missed   right GPU: of two devices that differ by "
    "more than 20 %, the faster one is predicted to be faster"
)


def print_accuracy(report: AccuracyReport, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write a validation to a console.

    Args:
        report: What was found out.
        console: Where to; its size, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    console.print(Text(headline(report), "bold"))
    for warning in warnings(report):
        console.print(Text(f"Careful: {warning}", "yellow"))
    sentence = PROTOCOL_SENTENCES[report.protocol]
    source = f"{printable(report.table, 200)} · {sentence[0].lower()}{sentence[1:]}"
    console.print(Text(f"{source}\n", "dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", min_width=6)
    for header in HEADERS:
        table.add_column(header, justify="right", no_wrap=True, min_width=len(header))
    table.add_row("all rows", *summary_cells(report.overall))
    for by in SHOWN_GROUPINGS:
        if not is_shown(report, by):
            continue
        table.add_row(f"by {GROUPING_TITLES[by]}", style="dim")
        for group, summary in report.summary[by].items():
            # Of a narrow terminal, names of groups give way, and figures do not.
            name = Text(f"  {printable(group, 40)}", no_wrap=True, overflow="ellipsis")
            table.add_row(name, *summary_cells(summary))
    console.print(table, Text(_LEGEND, "dim"), sep="\n")
    worst = worst_rows(report)
    if worst:
        console.print(Text(f"\nThe {plural(len(worst), 'row')} furthest off", "bold"))
    for row in worst:
        _print_row(row, console)
    for title, reasons in (
        (
            f"{plural(report.overall.num_unpredicted, 'row')} not predicted",
            unpredicted_reasons(report.rows),
        ),
        (f"{plural(len(report.unread), 'row')} not read", unread_reasons(report)),
    ):
        if reasons:
            console.print(Text(f"\n{title}", "bold"))
        for name, reason, count in reasons[:_MAX_REASONS]:
            line = Text.assemble(
                f"{count:,}× ", (printable(name, 120), "magenta"), f"  {printable(reason, 300)}"
            )
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
        rest = sum(count for _, _, count in reasons[_MAX_REASONS:])
        if rest:
            console.print(Text(f"  and {plural(rest, 'row')} for other reasons: --json", "dim"))
    if hints:
        console.line()
    for hint in hints:
        console.print(Text(hint, "dim"))


def _print_row(row: RowResult, console: Console) -> None:
    assert row.prediction is not None
    times = (
        f"{format_duration(row.value_ns)} measured, "
        f"{format_duration(row.prediction.estimate.value_ns)} predicted"
    )
    error = f"{signed_percent(row.error_fraction):>9}"
    console.print(Text(f"{error}  {printable(row.case_id, 40)}  {times}"))
    workload = shorten(printable(row.workload, None), 40)
    facts = (row.device, row.precision, row.phase, f"batch {row.batch_size:,}")
    where = Text(" · ".join((workload, *map(printable, facts))), "dim")
    console.print(Padding(where, (0, 0, 0, 11), expand=False))


def is_shown(report: AccuracyReport, by: str) -> bool:
    """Return whether a grouping says more than the line of all rows."""
    return by == "split" or len(report.summary[by]) > 1


def headline(report: AccuracyReport) -> str:
    """Return the answer in one sentence."""
    overall = report.overall
    num_predicted = overall.num_rows - overall.num_unpredicted
    if num_predicted == 0:
        return f"None of {plural(overall.num_rows, 'row')} could be predicted."
    of_all = "" if overall.num_unpredicted == 0 else f" of {overall.num_rows:,}"
    p90 = p90_percent(overall.p90_error_fraction, num_predicted)
    rows = plural(num_predicted, "row") if not of_all else f"{num_predicted:,}{of_all} rows"
    return (
        f"{rows} predicted: error {percent(overall.median_error_fraction)} "
        f"median{'' if p90 == '-' else f', {p90} P90'}; 90 % intervals hold "
        f"{percent(overall.coverage_fraction)} of all rows."
    )


def warnings(report: AccuracyReport) -> tuple[str, ...]:
    """Return what a reader must know first: rows that count nowhere, or that were learned from."""
    found: list[str] = []
    if report.unread:
        found.append(
            f"{plural(len(report.unread), 'row')} of this table could not be read, and "
            f"{'is' if len(report.unread) == 1 else 'are'} in none of the figures."
        )
    num_seen = report.overall.num_calibrated_on
    if num_seen:
        found.append(
            f"The calibration has seen {plural(num_seen, 'row')} of this table: their errors say "
            "how well it fits, not how well it predicts."
        )
    return tuple(found)


def summary_cells(summary: AccuracySummary) -> tuple[str, ...]:
    """Return the figures of a group, in the order of ``HEADERS``."""
    num_predicted = summary.num_rows - summary.num_unpredicted
    rows = f"{summary.num_rows:,}"
    if summary.num_unpredicted:
        rows = f"{num_predicted:,}/{rows}"
    return (
        rows,
        percent(summary.median_error_fraction),
        percent(summary.mean_error_fraction),
        p90_percent(summary.p90_error_fraction, num_predicted),
        signed_percent(summary.bias_fraction),
        percent(summary.coverage_fraction),
        percent(summary.right_device_fraction),
    )


def worst_rows(report: AccuracyReport, num_rows: int = _NUM_WORST) -> tuple[RowResult, ...]:
    """Return the rows with the largest errors, by factor, so that 2× too slow and too fast tie."""

    def factor(row: RowResult) -> float:
        ratio = 1.0 + (row.error_fraction or 0.0)
        return max(ratio, 1.0 / ratio)

    predicted = [row for row in report.rows if row.prediction is not None]
    return tuple(sorted(predicted, key=factor, reverse=True)[:num_rows])


def unpredicted_reasons(rows: Sequence[RowResult]) -> tuple[tuple[str, str, int], ...]:
    """Return code, reason and number of the rows that have no prediction, most rows first."""
    counts = Counter(
        (row.outcome.code, row.outcome.reason)
        for row in rows
        if isinstance(row.outcome, Unpredictable)
    )
    return tuple((code, reason, count) for (code, reason), count in counts.most_common())


def unread_reasons(report: AccuracyReport) -> tuple[tuple[str, str, int], ...]:
    """Return some rows, the cell and the number of rows that could not be read for it."""
    names: dict[str, list[str]] = {}
    for row in report.unread:
        reason = f"{row.reason}; allowed: {row.allowed}"
        names.setdefault(reason, []).append(row.case_id or row.place)
    found = [
        (", ".join((*rows[:_NUM_NAMED], *["..."] * (len(rows) > _NUM_NAMED))), reason, len(rows))
        for reason, rows in names.items()
    ]
    return tuple(sorted(found, key=lambda each: -each[2]))


def percent(fraction: float | None) -> str:
    """Return a share or error as a percentage with two digits: ``9.1 %``; ``-`` without one."""
    return "-" if fraction is None else f"{format_digits(100 * fraction, _digits(fraction))} %"


def p90_percent(fraction: float | None, num_rows: int) -> str:
    """Return a 90th percentile as a percentage; ``-`` where there are too few rows for one."""
    return "-" if num_rows < _LEAST_ROWS_FOR_P90 else percent(fraction)


def signed_percent(fraction: float | None) -> str:
    """Return ``+9.1 %`` or ``-12 %``; ``-`` where there is none."""
    if fraction is None:
        return "-"
    if fraction == 0:
        return percent(fraction)
    sign = "-" if fraction < 0 else "+"
    return f"{sign}{percent(abs(fraction))}"


def _digits(fraction: float) -> int:
    # 96 % and 99.6 % of pairs are not the same; 0.3 % of error is as much as 0 %.
    if abs(fraction) < 0.01:
        return 1
    return 3 if 0.95 <= fraction < 1.0 else 2
