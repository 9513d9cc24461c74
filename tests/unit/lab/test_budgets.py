"""Budgets: what a table's owner accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.errors import BreakevenError
from breakeven.report import LeaveOut
from factories.accuracy import mixed
from lab.validate import ErrorBudget, exceeded_budgets, read_budgets


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_budgets_are_read_for_their_protocol(tmp_path: Path) -> None:
    path = written(
        tmp_path / "b.toml",
        """
        [[budget]]
        by = "split:new-gpu"
        leave_out = "gpu"
        median = 0.12
        p90 = 0.30
        coverage_low = 0.85
        coverage_high = 0.95
        right_device = 0.97

        [[budget]]
        by = "regime,bound:under 20 ms,launch"
        mean = 0.2
        unpredicted = 0
        """,
    )
    for_gpu = read_budgets(path, protocol=LeaveOut.GPU)
    assert [budget.by for budget in for_gpu] == [
        "split:new-gpu",
        "regime,bound:under 20 ms,launch",
    ]
    assert for_gpu[0].coverage_high == 0.95
    (other,) = read_budgets(path, protocol=LeaveOut.MODEL)
    assert other.unpredicted == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget = 3", "is no file of budgets: Expected `array`"),
        ("[[budget]]\nmedian = 0.1", "missing required field `by`"),
        ('[[budget]]\nby = "all:all"\nmedain = 0.1', "unknown field `medain`"),
        ('[[budget]]\nby = "all:all"\nmedian = -1', "Expected `float` >= 0.0"),
        ('[[budget]]\nby = "all:all"\ncoverage_low = 85', "Expected `float` <= 1.0"),
        ("[[budget]", "is no file of budgets"),
        ('[[budget]]\nby = "gpu:T4"', "names no group"),
        ('[[budget]]\nby = "all"', "names no group"),
        ('[[budget]]\nby = "all:all"\nleave_out = "model"', "no budget is about --leave-out gpu"),
    ],
)
def test_files_that_hold_no_budgets(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match=message):
        read_budgets(written(tmp_path / "b.toml", text), protocol=LeaveOut.GPU)


def test_a_budget_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="No such file"):
        read_budgets(tmp_path / "absent.toml", protocol=LeaveOut.GPU)


# Of the twelve rows of the mixed table ten are predicted, with errors, in percent, of
# 10 25 10 10 16.7 25 62.5 3.3 112 0; all but the last-but-one (7.5 ms; 15.9 predicted, so
# from 7.95) and the first of torch7 (400 ms; 150 predicted, so up to 300) are in their intervals.
@pytest.mark.parametrize(
    ("budget", "breach"),
    [
        (ErrorBudget(by="all:all", median=0.1333), "median error 13.33 %, at most 13.33 % allowed"),
        (ErrorBudget(by="all:all", median=0.1334), None),
        (ErrorBudget(by="all:all", mean=0.27), "mean error 27.45 %, at most 27 % allowed"),
        (ErrorBudget(by="all:all", mean=0.28), None),
        (ErrorBudget(by="all:all", p90=0.5), "P90 of the error 67.45 %, at most 50 % allowed"),
        (ErrorBudget(by="all:all", p90=0.7), None),
        (ErrorBudget(by="all:all", coverage_low=0.7), "coverage 66.67 %, at least 70 % wanted"),
        (ErrorBudget(by="all:all", coverage_low=0.6, coverage_high=0.7), None),
        (ErrorBudget(by="all:all", coverage_high=0.6), "coverage 66.67 %, at most 60 % allowed"),
        (
            ErrorBudget(by="all:all", unpredicted=0.1),
            "share without a prediction 16.67 %, at most 10 % allowed",
        ),
        (ErrorBudget(by="all:all", unpredicted=0.17), None),
        (
            ErrorBudget(by="bound:(not predicted)", right_device=0.5),
            "right device unknown, at least 50 % wanted",
        ),
        (
            ErrorBudget(by="bound:(not predicted)", median=0.5),
            "median error unknown, at most 50 % allowed",
        ),
        (ErrorBudget(by="split:new-model", median=9.0), "there are no such rows"),
    ],
)
def test_a_limit_is_kept_or_told(budget: ErrorBudget, breach: str | None, tmp_path: Path) -> None:
    report = mixed(tmp_path / "t.csv")
    expected = () if breach is None else (f"{budget.by}: {breach}",)
    assert exceeded_budgets(report, [budget]) == expected


def test_every_breach_is_told(tmp_path: Path) -> None:
    budget = ErrorBudget(
        by="era:Torch7 and its contemporaries", median=0.01, mean=0.01, coverage_low=0.9
    )
    breaches = exceeded_budgets(
        mixed(tmp_path / "t.csv"), [budget, ErrorBudget(by="all:all", p90=0.1)]
    )
    assert [breach.partition(",")[0] for breach in breaches] == [
        "era:Torch7 and its contemporaries: median error 32.92 %",
        "era:Torch7 and its contemporaries: mean error 32.92 %",
        "era:Torch7 and its contemporaries: coverage 50 %",
        "all:all: P90 of the error 67.45 %",
    ]
