"""A changed script is compared with the script as it is, pair by pair, within the budget."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.trace import Configuration
from breakeven.tune._budget import Budget
from breakeven.tune._code_change_trial import _measure
from breakeven.tune._paired_runs import Rival
from breakeven.tune._trial_runs import RunResult
from breakeven.verdict import Outcome


def _result(step_ns: float) -> RunResult:
    return RunResult(step_ns=step_ns, low_ns=step_ns, high_ns=step_ns, startup_ns=0, wall_s=1)


class _Runs:
    def __init__(self, changed: RunResult | RunFailure) -> None:
        self.changed = changed
        self.orders: list[bool] = []

    def measure_changed(self, text: bytes, *_: Any, is_changed_first: bool, **__: Any) -> Any:
        assert text == b"changed"
        self.orders.append(is_changed_first)
        return _result(300.0), self.changed


def _compare(runs: Any, budget_s: float = 60.0) -> Any:
    return _measure(b"changed", runs, Configuration(), Budget(budget_s, lambda: 0.0), 5.0)


def test_who_is_first_changes_from_pair_to_pair() -> None:
    runs = _Runs(_result(100.0))
    rival = _compare(runs)
    assert isinstance(rival, Rival)
    assert runs.orders == [False, True, False, True]
    assert rival.speedup().value == pytest.approx(3.0)


def test_a_change_that_is_far_slower_is_given_up_after_one_pair() -> None:
    runs = _Runs(_result(900.0))
    assert _compare(runs).num_pairs == 1


def test_a_change_that_fails_says_why() -> None:
    failure = RunFailure(kind=FailureKind.EXCEPTION, exception="BreakevenError", message="differs")
    assert _compare(_Runs(failure)) == (Outcome.CRASHED, "BreakevenError: differs")


def test_a_pair_that_does_not_fit_is_not_run() -> None:
    runs = _Runs(_result(100.0))
    outcome, reason = _compare(runs, budget_s=4.0)
    assert outcome is Outcome.OUT_OF_BUDGET
    assert "4 s of 4 s are left" in reason
    assert runs.orders == []
