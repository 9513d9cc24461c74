"""Compare the predictions of a table's rows with the measurements, with errors per group."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from breakeven.cost import era_of
from breakeven.device import DeviceSpec, find_device, find_host_cpu
from breakeven.errors import BreakevenError, UnknownDeviceError
from breakeven.progress import Progress, SilentProgress
from breakeven.report import (
    AccuracyReport,
    AccuracySummary,
    LeaveOut,
    RowPrediction,
    RowResult,
    Unpredictable,
)
from breakeven.units import NS_PER_MS
from breakeven.validate.table import MeasuredRow, RowFilter, read_what_is_readable
from breakeven.validate.traced_rows import Predictor, model_family_of

# Names of the split for rows whose table names none.
_SPLITS = {
    LeaveOut.NONE: "shipped",
    LeaveOut.GPU: "new-gpu",
    LeaveOut.MODEL: "new-model",
    LeaveOut.SOURCE: "new-source",
}
# Devices within this ratio are a tie, and either choice is right.
_TIE_RATIO = 1.2
# Below this, the time to issue the step mostly determines its duration.
_SHORT_STEP_NS = 20 * NS_PER_MS
_NOT_GIVEN = "(not given)"


def validate_table(
    *paths: str | os.PathLike[str],
    predictor: Predictor,
    protocol: LeaveOut = LeaveOut.NONE,
    only: RowFilter | None = None,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Predict every row of a table and compare with its measurement.

    Args:
        paths: The files of the table.
        predictor: Predicts rows from a calibration that follows ``protocol``.
        protocol: The rows that the calibration leaves out.
        only: Filter of the rows; all by default.
        progress: Progress callback.

    Raises:
        BreakevenError: If the table cannot be read, or ``only`` leaves no row.
    """
    progress = SilentProgress() if progress is None else progress
    table = ", ".join(str(os.fspath(path)) for path in paths)
    progress.begin(f"reading {table}")
    rows, unread = read_what_is_readable(*paths)
    selected = rows if only is None else only.select(rows)
    selected_ids = {row.case_id for row in selected}
    # A fold also learns from rows that are not selected.
    training = [row for row in rows if row.case_id not in selected_ids]
    progress.begin(f"predicting {len(selected):,} rows")
    results = compare(selected, predictor=predictor, protocol=protocol, training=training)
    progress.end()
    return AccuracyReport(
        table=table,
        protocol=protocol,
        rows=results,
        summary=summarize_groups(results),
        unread=unread,
    )


def compare(
    rows: Sequence[MeasuredRow],
    *,
    predictor: Predictor,
    protocol: LeaveOut = LeaveOut.NONE,
    training: Sequence[MeasuredRow] = (),
) -> tuple[RowResult, ...]:
    """Return each row with its prediction, or the reason why it has none.

    Args:
        rows: Rows to predict.
        predictor: Predicts them.
        protocol: The rows that its calibration leaves out.
        training: Further rows that it may learn from.
    """
    devices = {name: _device(name) for name in {row.device for row in (*rows, *training)}}
    known, known_training = (
        [row for row in some if isinstance(devices[row.device], DeviceSpec)]
        for some in (rows, training)
    )
    outcomes: dict[str, RowPrediction | Unpredictable] = {}
    if known:
        predicted = predictor.predict(known, training=known_training)
        outcomes |= zip((row.case_id for row in known), predicted, strict=True)
    results: list[RowResult] = []
    for row in rows:
        name, architecture = row.device, ""
        match device := devices[row.device]:
            case DeviceSpec(name=name, architecture=architecture):
                outcome = outcomes[row.case_id]
            case Unpredictable():
                outcome = device
        # A row of the calibration is no validation, whatever split the table names.
        is_seen = isinstance(outcome, RowPrediction) and outcome.is_calibrated_on
        same = {field: getattr(row, field) for field in _SAME_FIELDS}
        results.append(
            RowResult(
                **same,
                device=name,
                architecture=architecture,
                era=str(era_of(row.framework)),
                family=model_family_of(row.workload),
                split="calibrated-on" if is_seen else row.split or _SPLITS[protocol],
                outcome=outcome,
            )
        )
    return tuple(results)


_SAME_FIELDS = (
    "case_id", "source", "workload", "num_devices", "precision", "batch_size", "phase",
    "optimizer", "host", "framework", "value_ns", "memory_format", "compile", "attention", "h2d",
)  # fmt: skip


def _device(name: str) -> DeviceSpec | Unpredictable:
    try:
        return find_device(name)
    except UnknownDeviceError as error:
        try:
            find_host_cpu(name)
        except BreakevenError:
            return Unpredictable(code="unknown-device", reason=error.message)
        return Unpredictable(code="cpu", reason="of a table, only steps on GPUs are predicted")


def summarize_groups(rows: Sequence[RowResult]) -> dict[str, dict[str, AccuracySummary]]:
    """Return the summary of every group of every grouping, in natural order."""
    summary: dict[str, dict[str, AccuracySummary]] = {}
    for by in GROUPINGS:
        groups: defaultdict[str, list[RowResult]] = defaultdict(list)
        for row in rows:
            groups[",".join(_SINGLE[name](row) for name in by.split(","))].append(row)
        summary[by] = {group: summarize(groups[group]) for group in sorted(groups, key=_natural)}
    return summary


def summarize(rows: Sequence[RowResult]) -> AccuracySummary:
    """Return the accuracy of the predictions of some rows; at least one row is required."""
    estimates = [row.prediction.estimate for row in rows if row.prediction is not None]
    measured_ns = np.array([row.value_ns for row in rows if row.prediction is not None])
    predicted_ns = np.array([estimate.value_ns for estimate in estimates])
    interval_ratios = np.array([estimate.high_ns / estimate.low_ns for estimate in estimates])
    errors = np.abs(predicted_ns / measured_ns - 1.0)
    num_right, num_pairs, num_pairs_unpredicted = _count_pairs(rows)

    def figure(of: Callable[[], np.floating]) -> float | None:
        return float(of()) if estimates else None

    return AccuracySummary(
        num_rows=len(rows),
        num_unpredicted=len(rows) - len(estimates),
        num_calibrated_on=sum(
            row.prediction is not None and row.prediction.is_calibrated_on for row in rows
        ),
        median_error_fraction=figure(lambda: np.median(errors)),
        mean_error_fraction=figure(lambda: np.mean(errors)),
        p90_error_fraction=figure(lambda: np.percentile(errors, 90)),
        bias_fraction=figure(lambda: np.expm1(np.mean(np.log(predicted_ns / measured_ns)))),
        coverage_fraction=sum(row.is_covered for row in rows) / len(rows),
        median_interval_ratio=figure(lambda: np.median(interval_ratios)),
        num_pairs=num_pairs,
        num_pairs_unpredicted=num_pairs_unpredicted,
        right_device_fraction=num_right / num_pairs if num_pairs else None,
    )


def _count_pairs(rows: Sequence[RowResult]) -> tuple[int, int, int]:
    """Return how many device pairs are ordered right, how many are predicted, and how many not."""
    rows_by_step: defaultdict[tuple[object, ...], list[RowResult]] = defaultdict(list)
    for row in rows:
        step = (
            row.source, row.workload, row.batch_size, row.phase, row.precision, row.optimizer,
            row.h2d, row.num_devices, row.memory_format, row.compile, row.attention,
        )  # fmt: skip
        rows_by_step[step].append(row)
    num_right = num_pairs = num_pairs_unpredicted = 0
    for members in rows_by_step.values():
        for one, other in itertools.combinations(members, 2):
            faster, slower = sorted((one, other), key=lambda row: row.value_ns)
            is_tie = slower.value_ns <= _TIE_RATIO * faster.value_ns
            if is_tie or one.device == other.device:
                continue
            if faster.prediction is None or slower.prediction is None:
                num_pairs_unpredicted += 1
                continue
            num_pairs += 1
            num_right += faster.prediction.estimate.value_ns < slower.prediction.estimate.value_ns
    return num_right, num_pairs, num_pairs_unpredicted


def _bound(row: RowResult) -> str:
    if row.prediction is None:
        return "(not predicted)"
    return "(not known)" if row.prediction.bound is None else row.prediction.bound.value


_SINGLE: Mapping[str, Callable[[RowResult], str]] = {
    "all": lambda _: "all",
    "split": lambda row: row.split,
    "source": lambda row: row.source or _NOT_GIVEN,
    "device": lambda row: row.device,
    "architecture": lambda row: row.architecture or "(not in the catalogue)",
    "workload": lambda row: row.workload,
    "family": lambda row: row.family or _NOT_GIVEN,
    "precision": lambda row: row.precision.value,
    "compile": lambda row: row.compile,
    "attention": lambda row: row.attention.value or _NOT_GIVEN,
    "memory_format": lambda row: row.memory_format.value,
    "phase": lambda row: row.phase.value,
    "era": lambda row: row.era or _NOT_GIVEN,
    "regime": lambda row: "under 20 ms" if row.value_ns < _SHORT_STEP_NS else "20 ms and over",
    "bound": _bound,
    "num_devices": lambda row: str(row.num_devices),
}
# Combined groupings: targets and published figures use them.
GROUPINGS: tuple[str, ...] = (
    *_SINGLE, "source,phase", "regime,bound", "compile,regime", "split,era", "split,regime",
    "split,bound", "split,num_devices",
)  # fmt: skip


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``2`` before ``16``, and ``(not known)`` last."""
    if text.startswith("("):
        return ((2, 0, text),)
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
