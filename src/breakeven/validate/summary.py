"""Errors, coverage and right choices of groups of rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from breakeven.units import NS_PER_MS
from breakeven.verdict import AccuracySummary, LeaveOut, RowResult

# Devices closer than this are a tie, for which either choice is right.
_TIE_RATIO = 1.2


def summarize_groups(rows: Sequence[RowResult]) -> dict[str, dict[str, AccuracySummary]]:
    """Return the summary of every group of every grouping."""
    return {
        by: {group: summarize(members) for group, members in groups_of(rows, by).items()}
        for by in GROUPINGS
    }


def summarize(rows: Sequence[RowResult]) -> AccuracySummary:
    """Return how good the predictions of the rows are.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("no rows to summarize")
    estimates = [row.prediction.estimate for row in rows if row.prediction is not None]
    measured_ns = np.array([row.value_ns for row in rows if row.prediction is not None])
    predicted_ns = np.array([estimate.value_ns for estimate in estimates])
    interval_ratios = np.array([estimate.high_ns / estimate.low_ns for estimate in estimates])
    errors = np.abs(predicted_ns / measured_ns - 1.0)
    num_right, num_pairs, num_pairs_unpredicted = _count_pairs(rows)
    is_any = len(estimates) > 0
    return AccuracySummary(
        num_rows=len(rows),
        num_unpredicted=len(rows) - len(estimates),
        num_calibrated_on=sum(
            row.prediction is not None and row.prediction.is_calibrated_on for row in rows
        ),
        median_error_fraction=float(np.median(errors)) if is_any else None,
        mean_error_fraction=float(np.mean(errors)) if is_any else None,
        p90_error_fraction=float(np.percentile(errors, 90)) if is_any else None,
        bias_fraction=(
            float(np.expm1(np.mean(np.log(predicted_ns / measured_ns)))) if is_any else None
        ),
        coverage_fraction=sum(row.is_covered for row in rows) / len(rows),
        median_interval_ratio=float(np.median(interval_ratios)) if is_any else None,
        num_pairs=num_pairs,
        num_pairs_unpredicted=num_pairs_unpredicted,
        right_device_fraction=num_right / num_pairs if num_pairs else None,
    )


def _count_pairs(rows: Sequence[RowResult]) -> tuple[int, int, int]:
    """Return how many pairs of devices are ordered right, of how many, and how many cannot be."""
    rows_by_step: dict[tuple[object, ...], list[RowResult]] = {}
    for row in rows:
        rows_by_step.setdefault(_step(row), []).append(row)
    num_right = num_pairs = num_pairs_unpredicted = 0
    for members in rows_by_step.values():
        for one, other in itertools.combinations(members, 2):
            if one.device == other.device:
                continue
            faster, slower = sorted((one, other), key=lambda row: row.value_ns)
            if slower.value_ns <= _TIE_RATIO * faster.value_ns:
                continue
            if faster.prediction is None or slower.prediction is None:
                num_pairs_unpredicted += 1
                continue
            num_pairs += 1
            num_right += faster.prediction.estimate.value_ns < slower.prediction.estimate.value_ns
    return num_right, num_pairs, num_pairs_unpredicted


def _step(row: RowResult) -> tuple[object, ...]:
    """Return what two rows share that differ in the device alone."""
    return (
        row.source,
        row.workload,
        row.batch_size,
        row.phase,
        row.precision,
        row.optimizer,
        row.h2d,
        row.num_devices,
        row.memory_format,
        row.compile,
        row.attention,
    )


# Below this, what the host spends to issue the step mostly decides how long it takes.
_SHORT_STEP_NS = 20 * NS_PER_MS
_NOT_GIVEN = "(not given)"

SPLIT_BY_PROTOCOL: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "shipped",
    LeaveOut.GPU: "new-gpu",
    LeaveOut.MODEL: "new-model",
    LeaveOut.SOURCE: "new-source",
}
CALIBRATED_ON = "calibrated-on"


def split_of(split: str, protocol: LeaveOut, *, is_calibrated_on: bool) -> str:
    """Return the split of a row: the table's own, or what the protocol makes of it.

    A row that the calibration has seen is no validation, whatever the table calls it.
    """
    if is_calibrated_on:
        return CALIBRATED_ON
    return split or SPLIT_BY_PROTOCOL[protocol]


def _regime(row: RowResult) -> str:
    return "under 20 ms" if row.value_ns < _SHORT_STEP_NS else "20 ms and over"


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
    "regime": _regime,
    "bound": _bound,
    "num_devices": lambda row: str(row.num_devices),
}
# Single figures that targets and published ones of others are about.
_CROSSED = (
    ("source", "phase"),
    ("regime", "bound"),
    ("compile", "regime"),
    ("split", "era"),
    ("split", "regime"),
    ("split", "bound"),
    ("split", "num_devices"),
)

GROUPINGS: tuple[str, ...] = (*_SINGLE, *(",".join(names) for names in _CROSSED))


def group_of(row: RowResult, by: str) -> str:
    """Return the group of a row under a grouping: ``precision``, or crossed, ``source,phase``."""
    return ",".join(_SINGLE[name](row) for name in by.split(","))


def groups_of(rows: Sequence[RowResult], by: str) -> dict[str, list[RowResult]]:
    """Return the rows of each group, groups in the order in which a person would sort them."""
    groups: dict[str, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(group_of(row, by), []).append(row)
    return {group: groups[group] for group in sorted(groups, key=_natural)}


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which ``2`` comes before ``16``, and ``(not known)`` last."""
    if text.startswith("("):
        return ((2, 0, text),)
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
