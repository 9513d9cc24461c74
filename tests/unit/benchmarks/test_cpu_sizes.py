"""Predictions of CPU times at sizes not measured, against sizes that were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


MODULE = load_script(BENCHMARKS / "cpu_size_curves.py")
CURVES = {
    key: times
    for path in sorted((BENCHMARKS / "data").glob("cpu_sizes_*.csv"))
    for key, times in MODULE.quietest(MODULE.read_rows(path)).items()
}
FOUND = MODULE.hold_out(CURVES)


def of_tasks(prefix: str):
    found = [each for each in FOUND if each.task.startswith(prefix)]
    assert found
    return MODULE.summarize(found)


def test_there_are_curves_of_many_kinds_of_networks() -> None:
    assert len({network for network, _ in CURVES}) >= 12
    assert sum(map(len, CURVES.values())) >= 150


@pytest.mark.parametrize("task", MODULE.TASKS)
def test_intervals_hold_as_often_as_they_say(task: str) -> None:
    assert 0.85 <= of_tasks(task).coverage_fraction <= 0.95


@pytest.mark.parametrize(
    ("prefix", "median", "p90"),
    [
        ("between, known 4x apart", 0.08, 0.25),
        ("between, known 16x apart", 0.08, 0.35),
        ("beyond, 4x larger", 0.15, 0.50),
        ("beyond, 4x smaller", 0.15, 0.55),
    ],
)
def test_errors_are_within_their_budget(prefix: str, median: float, p90: float) -> None:
    summary = of_tasks(prefix)
    assert summary.median_fraction <= median
    assert summary.p90_fraction <= p90


def test_no_bias_between_measured_sizes() -> None:
    errors = [each.error_fraction for each in FOUND if each.task.startswith("between")]
    assert abs(np.median(errors)) <= 0.03


def test_intervals_widen_from_between_to_beyond_to_one_size() -> None:
    def width(task: str) -> float:
        found = [each.predicted for each in FOUND if each.task == task]
        return float(np.median([np.log(each.high_ns / each.low_ns) for each in found]))

    between, larger, far, alone = (
        width(task)
        for task in (
            "between, known 4x apart",
            "beyond, 4x larger",
            "beyond, 16x larger",
            "one known, 4x larger",
        )
    )
    assert between < larger < far
    assert larger < alone
