"""A validation as it is stored: rows in the unit of their table."""

from __future__ import annotations

from typing import Literal

import msgspec

from breakeven.errors import Caveat
from breakeven.simulate import Bound
from breakeven.trace import Attention, MemoryFormat, NumberFormat, TimedPhase
from breakeven.units import NS_PER_MS
from breakeven.verdict import (
    AccuracyReport,
    AccuracySummary,
    LeaveOut,
    RowResult,
    Unpredictable,
    UnreadRow,
)

VALIDATION_SCHEMA_VERSION = 1
# Of a row in both forms.
_AS_THEY_ARE = (
    *("case_id", "source", "workload", "device", "architecture", "num_devices", "precision"),
    *("batch_size", "phase", "optimizer", "h2d", "host", "framework", "era", "split"),
    *("memory_format", "compile", "attention", "family"),
)


class ValidationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table, in its unit.

    Args:
        case_id: Name of the row in its table.
        predicted_ms: Predicted time of one step; null where there is none.
        low_ms: Lower end of its 90 % interval.
        high_ms: Upper end.
        value_ms: Measured time of one step.
        error_fraction: predicted / measured - 1, below 0 where the prediction is too fast.
        caveats: Reasons to trust the prediction less.
        reason: Why there is no prediction; null where there is one.
        reason_code: The same as a stable identifier.
        is_covered: Whether the interval holds the measured time.
        is_calibrated_on: Whether the calibration has seen this very row.
        bound: What limits the predicted step; null where that is unknown.
        source: Who measured it.
        workload: Spec of the model.
        device: Name in the catalogue, or that of the table where the catalogue has none.
        architecture: Of the device; empty where the catalogue has none.
        num_devices: Devices that share the step.
        precision: How numbers are stored and multiplied.
        batch_size: Samples per device.
        phase: What is timed.
        optimizer: ``none`` or its name.
        h2d: Whether the batch is copied to the device inside the timed region, and from where.
        host: Processor of the machine, as the table calls it.
        framework: Software, as the table calls it.
        era: Which years' software that is.
        split: The table's own word for it, or else what the protocol makes of the row.
        memory_format: Of images: ``contiguous`` or ``channels_last``.
        compile: Mode of ``torch.compile``, or ``none``.
        attention: How attention was computed; empty where the table does not say.
        family: Model family of the workload: the models that are left out together.
    """

    case_id: str
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
    source: str
    workload: str
    device: str
    architecture: str
    num_devices: int
    precision: NumberFormat
    batch_size: int
    phase: TimedPhase
    optimizer: str
    h2d: Literal["none", "pageable", "pinned"]
    host: str
    framework: str
    era: str
    split: str
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    compile: str = "none"
    attention: Attention = Attention.UNSAID
    family: str = ""


class ValidationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors by group.

    Args:
        by: By grouping (``all``, ``split``, ``device``, or crossed, ``source,phase``), then by
            group.
    """

    by: dict[str, dict[str, AccuracySummary]]


class ValidationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven validate` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        table: The table, as it was given.
        protocol: What the calibration has not seen of a row that it predicts.
        rows: In the order of the table, those without a prediction included.
        summary: Errors by group.
        unread: Rows with a cell that is not understood, which count nowhere.
    """

    schema_version: int
    table: str
    protocol: LeaveOut
    rows: tuple[ValidationRow, ...]
    summary: ValidationSummary
    unread: tuple[UnreadRow, ...] = ()


def stored_validation(report: AccuracyReport) -> ValidationDocument:
    """Return a validation as it is stored; times of rows in milliseconds."""
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
        **{field: getattr(row, field) for field in _AS_THEY_ARE},
    )
