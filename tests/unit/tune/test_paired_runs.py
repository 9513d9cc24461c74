"""A base and its rivals side by side, where runs can take turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.timing import TurnKind
from breakeven.trace import Configuration
from breakeven.tune.paired_runs import BaseFailedError, Decision, PairedRuns, Rival, decide
from breakeven.tune.trial_runs import RunResult
from breakeven.verdict import Numerics

_ONE_THREAD = Configuration(num_threads=1)
_FUSED = Configuration(optimizer="fused")
_WORKERS = Configuration(num_workers=2)
_FAILURE = RunFailure(kind=FailureKind.EXCEPTION, message="made up")


def _result(step_ns: float) -> RunResult:
    return RunResult(step_ns=step_ns, startup_ns=0, wall_s=1)


@dataclass
class _Turns:
    """Runs that take turns, unless loader processes take part.

    Args:
        failing: Runs that fail, counted from 0.
    """

    failing: tuple[int, ...] = ()
    asked: list[tuple[Configuration, Configuration, bool]] = field(default_factory=list)
    alone: list[Configuration] = field(default_factory=list)
    num_runs: int = 0

    def turns_with(self, first: Configuration, second: Configuration) -> TurnKind:
        has_workers = first.num_workers > 0 or second.num_workers > 0
        return TurnKind.NONE if has_workers else TurnKind.LONG

    def measure_in_turns(
        self, base: Configuration, rival: Configuration, *, is_rival_first: bool, **_: float
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        self.asked.append((base, rival, is_rival_first))
        return self._next(100.0), self._next(50.0)

    def measure(self, configuration: Configuration, **_: float) -> RunResult | RunFailure:
        self.alone.append(configuration)
        return self._next(100.0)

    def check_numbers(self, configuration: Configuration, numerics: Numerics) -> str | None:
        raise AssertionError("nothing here is checked")

    def _next(self, step_ns: float) -> RunResult | RunFailure:
        self.num_runs += 1
        return _FAILURE if self.num_runs - 1 in self.failing else _result(step_ns)


def test_each_rival_has_a_base_of_its_own_beside_it() -> None:
    runs = _Turns()
    rivals = [Rival(configuration=_ONE_THREAD), Rival(configuration=_FUSED)]
    pairs = PairedRuns(runs, Configuration())
    assert pairs.round(rivals) is None
    pairs.round(rivals)
    # Who has the first turn changes from round to round.
    assert runs.asked == [
        (Configuration(), _ONE_THREAD, False),
        (Configuration(), _FUSED, False),
        (Configuration(), _ONE_THREAD, True),
        (Configuration(), _FUSED, True),
    ]
    assert [rival.num_pairs for rival in rivals] == [2, 2]
    assert rivals[0].speedup().value == pytest.approx(2.0)


def test_loader_processes_do_not_take_turns() -> None:
    runs = _Turns()
    PairedRuns(runs, Configuration()).round([Rival(configuration=_WORKERS)])
    PairedRuns(runs, _WORKERS).round([Rival(configuration=_FUSED)])
    assert runs.asked == []
    assert runs.alone == [Configuration(), _WORKERS, _WORKERS, _FUSED]


def test_a_rival_that_fails_keeps_the_pairs_that_it_has() -> None:
    rival = Rival(configuration=_FUSED)
    pairs = PairedRuns(_Turns(failing=(3,)), Configuration())
    pairs.round([rival])
    pairs.round([rival])
    assert rival.failure == _FAILURE
    assert rival.num_pairs == 1


def test_a_base_that_fails_once_is_run_again() -> None:
    rival = Rival(configuration=_FUSED)
    PairedRuns(_Turns(failing=(0,)), Configuration()).round([rival])
    assert rival.num_pairs == 1
    with pytest.raises(BaseFailedError):
        PairedRuns(_Turns(failing=(0, 2)), Configuration()).round([rival])


_FAST = Configuration(fast_step=True)


def _rival(
    factor: float, kind: TurnKind, num_pairs: int = 1, configuration: Configuration = _FAST
) -> Rival:
    """Return a rival that is so many times as fast, by turns that differ by a few per cent."""

    def result(step_ns: float) -> RunResult:
        turns = {n: step_ns * (1 + 0.02 * (n % 3)) for n in range(16)}
        return RunResult(step_ns=step_ns, startup_ns=0, wall_s=1, turns=kind, turns_ns=turns)

    rival = Rival(configuration=configuration)
    for _ in range(num_pairs):
        rival.note(result(100.0 * factor), result(100.0))
    return rival


def test_one_pair_shows_what_is_obvious_and_nothing_less() -> None:
    assert decide(_rival(20.0, TurnKind.LONG)) is Decision.FASTER
    assert decide(_rival(1.5, TurnKind.LONG)) is Decision.UNDECIDED
    assert decide(_rival(1.5, TurnKind.LONG, num_pairs=2)) is Decision.FASTER
    # Under load, several threads may look so against one.
    one_thread = _rival(20.0, TurnKind.LONG, configuration=_ONE_THREAD)
    assert decide(one_thread) is Decision.UNDECIDED
    # Without turns, one hiccup of the machine would look the same.
    assert decide(_rival(20.0, TurnKind.NONE)) is Decision.UNDECIDED
