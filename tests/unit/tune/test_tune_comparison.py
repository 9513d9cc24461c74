"""A configuration and its base, run in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.timing import TurnKind
from breakeven.trace import Configuration
from breakeven.tune.comparison import BaseFailedError, Comparison, Decision
from breakeven.tune.runs import RunResult
from factories.trials import MadeUpRuns

_ONE_THREAD = Configuration(num_threads=1)
_FUSED = Configuration(optimizer="fused")
_FAST = Configuration(fast_step=True)
_FAILURE = RunFailure(kind=FailureKind.EXCEPTION, message="made up")


@dataclass
class _Pairs(MadeUpRuns):
    """Runs of which some fail.

    Args:
        failing: Which, counted from 0: each pair has two.
    """

    failing: tuple[int, ...] = ()
    firsts: list[bool] = field(default_factory=list)
    num_runs: int = 0

    def pair(
        self, base: Configuration, contender: Configuration, *, is_contender_first: bool, **_: Any
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        self.firsts.append(is_contender_first)
        return self._next(100.0), self._next(50.0)

    def _next(self, step_ns: float) -> RunResult | RunFailure:
        self.num_runs += 1
        if self.num_runs - 1 in self.failing:
            return _FAILURE
        return RunResult(step_ns=step_ns, startup_ns=0, wall_s=1)


def runs_failing(*failing: int) -> _Pairs:
    return _Pairs(lambda _: 1.0, failing=failing)


def compared(configuration: Configuration = _FUSED) -> Comparison:
    return Comparison(base=Configuration(), configuration=configuration)


def test_the_first_turn_changes_from_pair_to_pair() -> None:
    runs, comparison = runs_failing(), compared()
    for _ in range(3):
        comparison.run_pair(runs)
    assert runs.firsts == [False, True, False]
    assert comparison.num_pairs == 3
    assert comparison.speedup().value == pytest.approx(2.0)


def test_one_that_fails_keeps_the_pairs_that_it_has() -> None:
    runs, comparison = runs_failing(3), compared()
    comparison.run_pair(runs)
    comparison.run_pair(runs)
    assert comparison.failure == _FAILURE
    assert comparison.num_pairs == 1


def test_a_base_that_fails_once_is_run_again() -> None:
    comparison = compared()
    comparison.run_pair(runs_failing(0))
    assert comparison.num_pairs == 1
    with pytest.raises(BaseFailedError):
        compared().run_pair(runs_failing(0, 2))


def decided(
    factor: float, kind: TurnKind, num_pairs: int = 1, configuration: Configuration = _FAST
) -> Decision:
    """Return what is known of one that is faster by a factor, by turns that differ a little."""

    def result(step_ns: float) -> RunResult:
        turns = {n: step_ns * (1 + 0.02 * (n % 3)) for n in range(16)}
        return RunResult(step_ns=step_ns, startup_ns=0, wall_s=1, turns=kind, turns_ns=turns)

    comparison = compared(configuration)
    comparison.base_runs += [result(100.0 * factor)] * num_pairs
    comparison.own_runs += [result(100.0)] * num_pairs
    return comparison.decide()


def test_one_pair_shows_what_is_obvious_and_nothing_less() -> None:
    assert decided(20.0, TurnKind.LONG) is Decision.FASTER
    assert decided(1.5, TurnKind.LONG) is Decision.UNDECIDED
    assert decided(1.5, TurnKind.LONG, num_pairs=2) is Decision.FASTER
    # Under load, several threads may look so against one.
    assert decided(20.0, TurnKind.LONG, configuration=_ONE_THREAD) is Decision.UNDECIDED
    # Without turns, one hiccup of the machine would look the same.
    assert decided(20.0, TurnKind.NONE) is Decision.UNDECIDED
