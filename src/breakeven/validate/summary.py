"""Errors, coverage and right choices of a group of rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from breakeven.validate.splits import GROUPINGS, groups_of
from breakeven.verdict import AccuracySummary, RowResult

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
    )
