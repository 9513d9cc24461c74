"""The answer to `breakeven validate`, as values: predicted steps beside measured ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from breakeven.errors import Caveat
from breakeven.simulate import Bound
from breakeven.timing import Estimate
from breakeven.trace import Attention, MemoryFormat, NumberFormat, TimedPhase


class LeaveOut(StrEnum):
    """What the calibration must not have seen of a row that it predicts.

    ``none`` is the calibration that ships. ``gpu``: each GPU is predicted by a calibration made
    without any figure of it. ``model``: each model family is predicted by a calibration made
    without any row of it. ``source``: the rows of each source, steps and operators, are predicted
    by a calibration made without any of them.
    """

    NONE = "none"
    GPU = "gpu"
    MODEL = "model"
    SOURCE = "source"


class RowPrediction(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="predicted"
):
    """The step of a row, predicted.

    Args:
        estimate: Time of a step, with its 90 % interval.
        bound: What limits it; null where that was not worked out.
        caveats: Reasons to trust the figure less.
        is_calibrated_on: Whether the calibration has seen this very row, so that its error says
            how well the calibration fits, not how well it predicts.
    """

    estimate: Estimate
    bound: Bound | None = None
    caveats: tuple[Caveat, ...] = ()
    is_calibrated_on: bool = False


class Unpredictable(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="unpredictable"
):
    """Why a row has no prediction.

    Args:
        code: Stable identifier: ``unknown-device``, ``unknown-workload``, ...
        reason: One sentence for a person; equal for all rows that fail alike.
    """

    code: str
    reason: str


class UnreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table with a cell that is not understood, which counts nowhere.

    Args:
        case_id: Name of the row; empty where that is what it lacks.
        place: File and line.
        reason: Column and cell.
        allowed: What the column may hold.
    """

    case_id: str
    place: str
    reason: str
    allowed: str


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table: what was measured, and what is predicted for it.

    Args:
        case_id: Name of the row in its table.
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
        value_ns: Measured time of one step.
        outcome: The prediction, or why there is none.
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
    value_ns: float
    outcome: RowPrediction | Unpredictable
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    compile: str = "none"
    attention: Attention = Attention.UNSAID
    family: str = ""

    @property
    def prediction(self) -> RowPrediction | None:
        """Return the prediction where there is one."""
        return self.outcome if isinstance(self.outcome, RowPrediction) else None

    @property
    def error_fraction(self) -> float | None:
        """Return predicted / measured - 1, below 0 where the prediction is too fast."""
        if isinstance(self.outcome, Unpredictable):
            return None
        return self.outcome.estimate.value_ns / self.value_ns - 1.0

    @property
    def is_covered(self) -> bool:
        """Return whether the interval holds the measured time; an absent one does not."""
        if isinstance(self.outcome, Unpredictable):
            return False
        return self.outcome.estimate.low_ns <= self.value_ns <= self.outcome.estimate.high_ns


class AccuracySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How good the predictions of a group of rows are. Shares are 0 to 1, errors may exceed 1.

    Figures of errors are of the predicted rows alone, and null where there are none.

    Args:
        num_rows: Rows of the group.
        num_unpredicted: Those of them without a prediction.
        num_calibrated_on: Those of them that the calibration has seen.
        median_error_fraction: Median of abs(predicted / measured - 1).
        mean_error_fraction: Mean of the same.
        p90_error_fraction: 90th percentile of the same.
        bias_fraction: Geometric mean of predicted / measured, minus 1: above 0 where predictions
            are too slow.
        coverage_fraction: Share of all rows whose 90 % interval holds the measured time; a row
            without a prediction counts as not covered.
        median_interval_ratio: Median of upper by lower end of the interval.
        num_pairs: Pairs of predicted rows that are equal in everything but the device and whose
            measured times differ by more than 20 %.
        num_pairs_unpredicted: Such pairs of which a row has no prediction.
        right_device_fraction: Share of ``num_pairs`` whose faster device is predicted to be
            faster; null where there are none.
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
    """Everything that `breakeven validate` found out.

    Args:
        table: The table, as it was given.
        protocol: What the calibration has not seen.
        rows: In the order of the table.
        summary: By grouping (``all``, ``split``, ``device``, ...), then by group.
        unread: Rows that could not be read, in the order of the table.
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
