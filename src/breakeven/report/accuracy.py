"""The answer to `breakeven validate`, as values: predicted step times against measured ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from breakeven.errors import Caveat
from breakeven.simulate import Bound
from breakeven.timing import Estimate
from breakeven.trace import Attention, MemoryFormat, NumberFormat, TimedPhase


class LeaveOut(StrEnum):
    """The data excluded from the calibration that predicts a row.

    ``none`` is the calibration that ships. ``gpu``: each GPU is predicted by a calibration made
    without any figure of it. ``model``: each model family is predicted by a calibration made
    without any row of it. ``source``: the rows of each source, steps and operators, are predicted
    by a calibration made without any of them.
    """

    NONE = "none"
    GPU = "gpu"
    MODEL = "model"
    SOURCE = "source"


class RowPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted step of a row.

    Args:
        estimate: Time of a step, with its 90 % interval.
        bound: The bottleneck of the step; null if it was not determined.
        caveats: Reasons to trust the figure less.
        is_calibrated_on: Whether this row is part of the calibration. Its error then measures the
            fit, not the prediction.
    """

    estimate: Estimate
    bound: Bound | None = None
    caveats: tuple[Caveat, ...] = ()
    is_calibrated_on: bool = False


class Unpredictable(msgspec.Struct, frozen=True, kw_only=True):
    """Why a row has no prediction.

    Args:
        code: Stable identifier: ``unknown-device``, ``unknown-workload``, ...
        reason: One sentence for a person; equal for all rows with the same failure.
    """

    code: str
    reason: str


class UnreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A table row with an invalid cell, left out of all figures.

    Args:
        case_id: Name of the row; empty if the name is missing.
        place: File and line.
        reason: The column and its invalid cell.
        allowed: The values that the column allows.
    """

    case_id: str
    place: str
    reason: str
    allowed: str


class RowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step of a table, without its time.

    Args:
        case_id: Name of the row in its table.
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

    case_id: str
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


class RowResult(RowFacts, frozen=True, kw_only=True):
    """One row of a table: its measured and its predicted time.

    Args:
        value_ns: Measured time of one step.
        outcome: The prediction, or the reason why there is none.
    """

    value_ns: float
    outcome: RowPrediction | Unpredictable

    @property
    def prediction(self) -> RowPrediction | None:
        """Return the prediction, or None."""
        return self.outcome if isinstance(self.outcome, RowPrediction) else None

    @property
    def error_fraction(self) -> float | None:
        """Return predicted / measured - 1: negative if the prediction is too fast."""
        if isinstance(self.outcome, Unpredictable):
            return None
        return self.outcome.estimate.value_ns / self.value_ns - 1.0

    @property
    def is_covered(self) -> bool:
        """Return whether the interval contains the measured time; False without a prediction."""
        if isinstance(self.outcome, Unpredictable):
            return False
        return self.outcome.estimate.low_ns <= self.value_ns <= self.outcome.estimate.high_ns


class AccuracySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of the predictions for a group of rows. Shares are 0 to 1, errors may exceed 1.

    Error figures cover only the predicted rows, and are null if there are none.

    Args:
        num_rows: Rows of the group.
        num_unpredicted: Rows of the group without a prediction.
        num_calibrated_on: Rows of the group that are part of the calibration.
        median_error_fraction: Median of abs(predicted / measured - 1).
        mean_error_fraction: Mean of the same.
        p90_error_fraction: 90th percentile of the same.
        bias_fraction: Geometric mean of predicted / measured, minus 1: positive if predictions are
            too slow.
        coverage_fraction: Share of all rows whose 90 % interval contains the measured time; a row
            without a prediction counts as not covered.
        median_interval_ratio: Median of the interval's upper end divided by its lower end.
        num_pairs: Pairs of predicted rows that differ only in the device, with measured times more
            than 20 % apart.
        num_pairs_unpredicted: Such pairs with a row that has no prediction.
        right_device_fraction: Share of ``num_pairs`` with the faster device predicted correctly;
            null if there are no pairs.
    """

    num_rows: int
    num_unpredicted: int
    num_calibrated_on: int
    median_error_fraction: float | None
    mean_error_fraction: float | None
    p90_error_fraction: float | None
    bias_fraction: float | None
    coverage_fraction: float
    median_interval_ratio: float | None
    num_pairs: int
    num_pairs_unpredicted: int
    right_device_fraction: float | None


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven validate`.

    Args:
        table: The table, as given.
        protocol: The data excluded from the calibration.
        rows: Results of the rows, in table order.
        summary: Accuracy by grouping (``all``, ``split``, ``device``, ...), then by group.
        unread: Invalid rows, in table order.
    """

    table: str
    protocol: LeaveOut
    rows: tuple[RowResult, ...]
    summary: dict[str, dict[str, AccuracySummary]]
    unread: tuple[UnreadRow, ...] = ()

    @property
    def overall(self) -> AccuracySummary:
        """Return the summary of all rows."""
        return self.summary["all"]["all"]
