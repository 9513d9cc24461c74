"""A validation: errors by group, the worst rows and failures; and its stored form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from breakeven.errors import Caveat
from breakeven.report.accuracy import (
    AccuracyReport,
    AccuracySummary,
    LeaveOut,
    RowFacts,
    RowResult,
    Unpredictable,
    UnreadRow,
)
from breakeven.report.document import Cell, Column, Document, Line, Section, Table
from breakeven.report.text import plural, printable, shorten
from breakeven.simulate import Bound
from breakeven.units import NS_PER_MS, format_digits, format_duration

VALIDATION_SCHEMA_VERSION = 1
PROTOCOL_SENTENCES: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "The calibration that ships with breakeven predicts every row.",
    LeaveOut.GPU: "Leave one GPU out: each GPU is predicted by a calibration made without any "
    "figure of it.",
    LeaveOut.MODEL: "Leave one model family out: each family is predicted by a calibration made "
    "without any row of it.",
    LeaveOut.SOURCE: "Leave one source out: the steps of each source are predicted by a "
    "calibration made without any figure from it.",
}
# Groupings shown to a person; the JSON document has all of them.
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
# Fewer rows have no meaningful 90th percentile.
_LEAST_ROWS_FOR_P90 = 10
# A number that a person reads one by one.
_NUM_WORST = 10
# Rows named for each common failure.
_NUM_NAMED = 3
_MAX_REASONS = 12
_LEGEND = (
    "error: |predicted / measured - 1|   bias: + is too slow   in 90 %: rows that the interval "
    "holds, those not predicted counted as missed   right GPU: of two devices that differ by "
    "more than 20 %, the faster one is predicted to be faster"
)


def accuracy_document(report: AccuracyReport) -> Document:
    """Return the document of a validation."""
    sentence = PROTOCOL_SENTENCES[report.protocol]
    source = f"{printable(report.table, 200)} · {sentence[0].lower()}{sentence[1:]}"
    rows: list[tuple[Cell | str, ...]] = [("all rows", *summary_cells(report.overall))]
    for by in SHOWN_GROUPINGS:
        if is_shown(report, by):
            rows.append((Cell(f"by {GROUPING_TITLES[by]}", "dim"), *[""] * len(HEADERS)))
            rows += [
                (f"  {printable(group, 40)}", *summary_cells(summary))
                for group, summary in report.summary[by].items()
            ]
    names, *figures = zip(*rows, strict=True)
    table = Table(
        (
            Column("", names, least=6),
            *(
                Column(header, cells, is_number=True)
                for header, cells in zip(HEADERS, figures, strict=True)
            ),
        ),
        legend=_LEGEND,
    )
    return Document(
        title="How far off are the predictions?",
        answers=(
            Line(headline(report), "bold"),
            *(Line(f"Careful: {warning}", "yellow") for warning in warnings(report)),
            Line(source, "dim"),
        ),
        blocks=(Section("", (table,)), *_row_sections(report)),
    )


def _row_sections(report: AccuracyReport) -> Iterator[Section]:
    """Yield the rows with the largest errors, and the reasons for missing predictions."""
    lines: list[Line] = []
    worst = worst_rows(report)
    for row in worst:
        assert row.prediction is not None
        times = (
            f"{format_duration(row.value_ns)} measured, "
            f"{format_duration(row.prediction.estimate.value_ns)} predicted"
        )
        error = f"{signed_percent(row.error_fraction):>9}"
        lines.append(Line(f"{error}  {printable(row.case_id, 40)}  {times}"))
        facts = (row.device, row.precision, row.phase, f"batch {row.batch_size:,}")
        workload = shorten(printable(row.workload, None), 40)
        lines.append(Line(" · ".join((workload, *map(printable, facts))), "dim", 11))
    if lines:
        yield Section(f"The {plural(len(worst), 'row')} furthest off", lines)
    for title, reasons in (
        (
            f"{plural(report.overall.num_unpredicted, 'row')} not predicted",
            unpredicted_reasons(report.rows),
        ),
        (f"{plural(len(report.unread), 'row')} not read", unread_reasons(report)),
    ):
        lines = []
        for name, reason, count in reasons[:_MAX_REASONS]:
            named = (printable(name, 120), "magenta")
            lines.append(Line((f"{count:,}× ", named, f"  {printable(reason, 300)}"), indent=2))
        rest = sum(count for _, _, count in reasons[_MAX_REASONS:])
        if rest:
            lines.append(Line(f"and {plural(rest, 'row')} for other reasons: --json", "dim", 2))
        if lines:
            yield Section(title, lines)


def is_shown(report: AccuracyReport, by: str) -> bool:
    """Return whether a grouping adds anything to the line for all rows."""
    return by == "split" or len(report.summary[by]) > 1


def headline(report: AccuracyReport) -> str:
    """Return the answer in one sentence."""
    overall = report.overall
    num_predicted = overall.num_rows - overall.num_unpredicted
    if num_predicted == 0:
        return f"None of {plural(overall.num_rows, 'row')} could be predicted."
    p90 = p90_percent(overall.p90_error_fraction, num_predicted)
    rows = plural(num_predicted, "row")
    if overall.num_unpredicted:
        rows = f"{num_predicted:,} of {overall.num_rows:,} rows"
    return (
        f"{rows} predicted: error {percent(overall.median_error_fraction)} "
        f"median{'' if p90 == '-' else f', {p90} P90'}; 90 % intervals hold "
        f"{percent(overall.coverage_fraction)} of all rows."
    )


def warnings(report: AccuracyReport) -> tuple[str, ...]:
    """Return warnings: invalid rows, and rows that are part of the calibration."""
    found: list[str] = []
    if report.unread:
        found.append(
            f"{plural(len(report.unread), 'row')} of this table could not be read; the figures "
            f"leave {'it' if len(report.unread) == 1 else 'them'} out."
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
    return (
        f"{num_predicted:,}/{rows}" if summary.num_unpredicted else rows,
        percent(summary.median_error_fraction),
        percent(summary.mean_error_fraction),
        p90_percent(summary.p90_error_fraction, num_predicted),
        signed_percent(summary.bias_fraction),
        percent(summary.coverage_fraction),
        percent(summary.right_device_fraction),
    )


def worst_rows(report: AccuracyReport, num_rows: int = _NUM_WORST) -> tuple[RowResult, ...]:
    """Return the rows with the largest errors, by factor: 2× too slow and 2× too fast tie."""

    def factor(row: RowResult) -> float:
        ratio = 1.0 + (row.error_fraction or 0.0)
        return max(ratio, 1.0 / ratio)

    predicted = [row for row in report.rows if row.prediction is not None]
    return tuple(sorted(predicted, key=factor, reverse=True)[:num_rows])


def unpredicted_reasons(rows: Sequence[RowResult]) -> tuple[tuple[str, str, int], ...]:
    """Return code, reason and number of rows without a prediction, most rows first."""
    counts = Counter(
        (row.outcome.code, row.outcome.reason)
        for row in rows
        if isinstance(row.outcome, Unpredictable)
    )
    return tuple((code, reason, count) for (code, reason), count in counts.most_common())


def unread_reasons(report: AccuracyReport) -> tuple[tuple[str, str, int], ...]:
    """Return names of some rows, the invalid cell and the number of such rows."""
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
    """Return a share or error as a percentage with two digits: ``9.1 %``; ``-`` for None."""
    if fraction is None:
        return "-"
    # 96 % and 99.6 % of pairs differ; an error of 0.3 % is as good as 0 %.
    digits = 1 if abs(fraction) < 0.01 else 3 if 0.95 <= fraction < 1.0 else 2
    return f"{format_digits(100 * fraction, digits)} %"


def p90_percent(fraction: float | None, num_rows: int) -> str:
    """Return a 90th percentile as a percentage; ``-`` if there are too few rows."""
    return "-" if num_rows < _LEAST_ROWS_FOR_P90 else percent(fraction)


def signed_percent(fraction: float | None) -> str:
    """Return ``+9.1 %`` or ``-12 %``; ``-`` for None."""
    if not fraction:
        return percent(fraction)
    return f"{'-' if fraction < 0 else '+'}{percent(abs(fraction))}"


class ValidationRow(RowFacts, frozen=True, kw_only=True):
    """One row of the table, in the table's unit.

    Args:
        case_id: Name of the row in its table.
        predicted_ms: Predicted time of one step; null if there is none.
        low_ms: Lower end of its 90 % interval.
        high_ms: Upper end.
        value_ms: Measured time of one step.
        error_fraction: predicted / measured - 1, negative if the prediction is too fast.
        caveats: Reasons to trust the prediction less.
        reason: Reason for a missing prediction; null if there is one.
        reason_code: The same as a stable identifier.
        is_covered: Whether the interval contains the measured time.
        is_calibrated_on: Whether this row is part of the calibration.
        bound: The bottleneck of the predicted step; null if unknown.
        source: Publication or person that measured it.
        workload: Spec of the model.
        device: Name in the catalogue, or in the table if the catalogue lacks the device.
        architecture: Architecture of the device; empty if the catalogue lacks the device.
        num_devices: Devices that share the step.
        precision: Number format of storage and multiplication.
        batch_size: Samples per device.
        phase: The timed phase.
        optimizer: ``none`` or its name.
        h2d: Host memory from which the timed region copies the batch; ``none`` if it copies none.
        host: Processor of the machine, as named in the table.
        framework: Software, as named in the table.
        era: Period of that software.
        split: Split as named in the table, or else as set by the protocol.
        memory_format: Of images: ``contiguous`` or ``channels_last``.
        compile: Mode of ``torch.compile``, or ``none``.
        attention: Implementation of attention; empty if the table does not name it.
        family: Model family of the workload; its models are left out together.
    """

    predicted_ms: float | None
    low_ms: float | None
    high_ms: float | None
    value_ms: float
    error_fraction: float | None
    caveats: tuple[Caveat, ...]
    reason: str | None
    reason_code: str | None
    is_covered: bool
    is_calibrated_on: bool
    bound: Bound | None


class ValidationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors by group.

    Args:
        by: Accuracy by grouping (``all``, ``split``, ``device``, or crossed, ``source,phase``),
            then by group.
    """

    by: dict[str, dict[str, AccuracySummary]]


class ValidationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven validate`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        table: The table, as given.
        protocol: The data excluded from the calibration that predicts a row.
        rows: All rows in table order, including rows without a prediction.
        summary: Errors by group.
        unread: Rows with an invalid cell, left out of all figures.
    """

    schema_version: int
    table: str
    protocol: LeaveOut
    rows: tuple[ValidationRow, ...]
    summary: ValidationSummary
    unread: tuple[UnreadRow, ...] = ()


def stored_validation(report: AccuracyReport) -> ValidationDocument:
    """Return a validation in its stored form; times of rows are in milliseconds."""
    return ValidationDocument(
        schema_version=VALIDATION_SCHEMA_VERSION,
        table=report.table,
        protocol=report.protocol,
        rows=tuple(_row(row) for row in report.rows),
        summary=ValidationSummary(by=report.summary),
        unread=report.unread,
    )


def _row(row: RowResult) -> ValidationRow:
    prediction = row.prediction
    estimate = None if prediction is None else prediction.estimate
    refusal = row.outcome if isinstance(row.outcome, Unpredictable) else None
    return ValidationRow(
        predicted_ms=None if estimate is None else estimate.value_ns / NS_PER_MS,
        low_ms=None if estimate is None else estimate.low_ns / NS_PER_MS,
        high_ms=None if estimate is None else estimate.high_ns / NS_PER_MS,
        value_ms=row.value_ns / NS_PER_MS,
        error_fraction=row.error_fraction,
        caveats=() if prediction is None else prediction.caveats,
        reason=None if refusal is None else refusal.reason,
        reason_code=None if refusal is None else refusal.code,
        is_covered=row.is_covered,
        is_calibrated_on=prediction is not None and prediction.is_calibrated_on,
        bound=None if prediction is None else prediction.bound,
        **{field: getattr(row, field) for field in RowFacts.__struct_fields__},
    )
