"""A changed script is compared with the script as it is, pair by pair, within the budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from breakeven.capture import FailureKind, RunFailure, RunRequest, find_target
from breakeven.rewrite import SourcePatch
from breakeven.trace import Configuration
from breakeven.tune.budget import TimeBudget
from breakeven.tune.code_change_trial import (
    CodeChangePlan,
    CodeChangeTrial,
    _measure,
    _next_pair_s,
    plan_code_change,
)
from breakeven.tune.paired_runs import Rival
from breakeven.tune.trial_runs import RunResult
from breakeven.verdict import CodeChange, Outcome
from factories.steps_facts import mlp


def _result(step_ns: float) -> RunResult:
    return RunResult(step_ns=step_ns, startup_ns=0, wall_s=1)


class _Runs:
    def __init__(self, changed: RunResult | RunFailure) -> None:
        self.changed = changed
        self.orders: list[bool] = []

    def measure_changed(self, text: bytes, *_: Any, is_changed_first: bool, **__: Any) -> Any:
        assert text == b"changed"
        self.orders.append(is_changed_first)
        return _result(300.0), self.changed


PLAN = CodeChangePlan(
    patch=SourcePatch(text="changed", change=CodeChange(file="train.py", line=1, diff="")),
    pair_s=4.0,
    extra_s=5.0,
    num_steps=1_000,
    is_promising=True,
)


def _compare(runs: Any, budget_s: float = 60.0) -> Any:
    return _measure(PLAN, runs, Configuration(), TimeBudget(budget_s, lambda: 0.0))


def test_who_is_first_changes_from_pair_to_pair() -> None:
    runs = _Runs(_result(100.0))
    rival = _compare(runs)
    assert isinstance(rival, Rival)
    assert runs.orders == [False, True, False, True]
    assert rival.speedup().value == pytest.approx(3.0)


def test_a_change_that_is_far_slower_is_given_up_after_one_pair() -> None:
    runs = _Runs(_result(900.0))
    assert _compare(runs).num_pairs == 1


def test_what_there_was_time_for_is_judged() -> None:
    spent_s = iter(range(0, 1_000, 3))
    runs = _Runs(_result(100.0))
    budget = TimeBudget(12.0, lambda: next(spent_s))
    rival = _measure(PLAN, cast(Any, runs), Configuration(), budget)
    assert isinstance(rival, Rival)
    assert rival.num_pairs == 2


def test_what_the_first_pair_compiled_does_not_count_for_the_next() -> None:
    changed = Rival(configuration=Configuration(), extra_s=5.0)
    changed.base_runs.append(replace(_result(300.0), startup_ns=1e9, wall_s=2.0))
    changed.own_runs.append(replace(_result(100.0), startup_ns=21e9, wall_s=22.0))
    assert _next_pair_s(PLAN, changed) == pytest.approx(4.0)
    changed.base_runs.append(replace(_result(300.0), wall_s=2.0))
    changed.own_runs.append(replace(_result(100.0), wall_s=3.0))
    assert _next_pair_s(PLAN, changed) == pytest.approx(5.0)


def test_a_change_that_fails_says_why() -> None:
    failure = RunFailure(kind=FailureKind.EXCEPTION, exception="BreakevenError", message="differs")
    assert _compare(_Runs(failure)) == (Outcome.CRASHED, "BreakevenError: differs")


def test_a_pair_that_does_not_fit_is_not_run() -> None:
    runs = _Runs(_result(100.0))
    outcome, reason = _compare(runs, budget_s=4.0)
    assert outcome is Outcome.OUT_OF_BUDGET
    assert "4 s of 4 s are left" in reason
    assert runs.orders == []


_LOOP = """\
import torch

model, loss_fn = torch.nn.Linear(4, 1), torch.nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
"""


def _plan(script: Path, num_steps: int, **facts: Any) -> Any:
    script.write_text(_LOOP)
    request = RunRequest(target=find_target(str(script)), is_traced=False, time_limit_s=60.0)
    return plan_code_change(
        request, mlp(**facts), startup_s=0.5, num_steps=num_steps, is_exact_only=False
    )


@pytest.mark.parametrize(
    ("step_ns", "num_steps", "is_promising"),
    [
        (100_000.0, 10_000_000, True),
        # Most of the step computes: settings come first.
        (2_000_000.0, 10_000_000, False),
        # Compiling takes nearly as long as all steps, of which it saves a half.
        (800_000.0, 15_000, False),
    ],
)
def test_time_is_kept_back_for_a_step_that_mostly_issues_operators(
    tmp_path: Path, step_ns: float, num_steps: int, *, is_promising: bool
) -> None:
    # Issuing takes 80 µs of the step.
    plan = _plan(tmp_path / "train.py", num_steps, step_ns=step_ns)
    assert isinstance(plan, CodeChangePlan)
    kept_back_s = plan.kept_back_s(TimeBudget(60.0))
    assert (kept_back_s > plan.extra_s) == is_promising
    assert is_promising or kept_back_s == 0.0
    # Half of this is too little for it: settings may have it all.
    assert plan.kept_back_s(TimeBudget(20.0)) == 0.0


def test_nothing_is_planned_that_takes_longer_than_the_run(tmp_path: Path) -> None:
    found = _plan(tmp_path / "train.py", 10)
    assert isinstance(found, CodeChangeTrial)
    assert found.trial.outcome is Outcome.NOT_WORTH_IT


def test_what_is_kept_back_is_left_afterwards() -> None:
    budget = TimeBudget(60.0, lambda: 0.0)
    with budget.kept_back(20.0):
        assert budget.left_s == 40.0
        assert not budget.fits(41.0)
        with budget.kept_back(50.0):
            assert budget.left_s == 0.0
    assert budget.left_s == 60.0
