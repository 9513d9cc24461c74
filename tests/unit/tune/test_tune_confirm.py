"""The confirmation: what the search found must show itself again, or the script stays as it is."""

from __future__ import annotations

import pytest

from breakeven.capture import RunFailure
from breakeven.timing import BUSY_MACHINE
from breakeven.trace import Configuration
from breakeven.tune.budget import RunLength
from breakeven.tune.confirm import Confirmation, confirm
from breakeven.tune.runs import RunResult
from breakeven.tune.search import search
from breakeven.tune.search_result import Kept, SearchResult
from breakeven.verdict import Numerics, Outcome, Trial
from factories.trials import (
    CHANNELS,
    COMPILE,
    FACTS,
    FUSED,
    STEP_NS,
    THREADS_1,
    MadeUp,
    MadeUpRuns,
    failed,
    made_up,
    speeds,
)

BASELINE = RunResult(step_ns=STEP_NS, startup_ns=1e8, wall_s=0.6)


def found(*kept: tuple[MadeUp, float], startup_ns: float = 0.0) -> SearchResult:
    """Return what a search would say that kept these, each with the lower end of its interval."""
    members: list[Kept] = []
    for candidate, low in kept:
        trial = Trial(
            candidate=candidate.name,
            title=candidate.title,
            numerics=candidate.numerics,
            outcome=Outcome.KEPT,
            reason="made up",
            speedup=low * 1.1,
            low=low,
            high=low * 1.2,
            startup_ns=startup_ns,
        )
        members.append(Kept(candidate, trial))
    return SearchResult(
        kept=tuple(members), trials=tuple(each.trial for each in members), baseline=BASELINE
    )


def confirmed(
    result: SearchResult, runs: MadeUpRuns, budget_s: float = 100.0, num_steps: int = 10_000_000
) -> Confirmation:
    return confirm(
        result,
        runs,
        budget=runs.budget(budget_s),
        length=RunLength(num_steps=num_steps),
    )


def outcomes(answer: Confirmation) -> dict[str, Outcome]:
    return {trial.candidate: trial.outcome for trial in answer.trials}


def assert_baseline_wins(answer: Confirmation) -> None:
    assert answer.configuration == Configuration()
    assert answer.numerics is Numerics.EXACT
    assert (answer.speedup.value, answer.speedup.low, answer.speedup.high) == (1.0, 1.0, 1.0)
    assert answer.tuned_step_ns == answer.baseline_step_ns
    assert answer.pays_off_after_steps is None
    assert Outcome.KEPT not in outcomes(answer).values()


def test_what_is_faster_again_is_confirmed_with_the_figures_of_these_runs_alone() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5, num_threads=1.2))
    answer = confirmed(found((FUSED, 1.4), (THREADS_1, 1.1)), runs)
    assert answer.configuration == Configuration(optimizer="fused", num_threads=1)
    assert answer.speedup.low < 1.8 < answer.speedup.high
    assert answer.speedup.low >= 1.02
    assert answer.baseline_step_ns == pytest.approx(STEP_NS, rel=0.05)
    assert answer.tuned_step_ns == pytest.approx(STEP_NS / 1.8, rel=0.05)
    assert answer.numerics is Numerics.REORDERED
    assert answer.pays_off_after_steps == 0
    plain = Configuration()
    # Interleaved, and none of them from the search.
    order = [configuration == plain for configuration in runs.asked]
    assert order == [True, False, False, True] * 2


def test_where_runs_are_long_two_pairs_may_do() -> None:
    runs = MadeUpRuns(speeds(optimizer=2.0))
    answer = confirmed(found((FUSED, 1.4)), runs, budget_s=2.5)
    assert answer.configuration == Configuration(optimizer="fused")
    assert answer.speedup.num_pairs == 2
    little = MadeUpRuns(speeds(optimizer=1.2))
    assert_baseline_wins(confirmed(found((FUSED, 1.1)), little, budget_s=2.5))


def test_what_the_search_took_for_faster_by_chance_is_dropped() -> None:
    runs = MadeUpRuns(speeds())
    answer = confirmed(found((FUSED, 1.4)), runs)
    assert_baseline_wins(answer)
    (trial,) = answer.trials
    assert trial.outcome is Outcome.NOT_CONFIRMED
    assert "not shown to be 2 % faster" in trial.reason


def test_slower_configurations_are_never_confirmed_and_good_ones_mostly_are() -> None:
    for noise in (0.01, 0.04, 0.1):
        wrong = right = 0
        for seed in range(150):
            slower = MadeUpRuns(speeds(optimizer=0.98), noise=noise, seed=seed)
            wrong += bool(confirmed(found((FUSED, 1.1)), slower).configuration.changes)
            faster = MadeUpRuns(speeds(optimizer=1.6), noise=noise, seed=seed)
            right += bool(confirmed(found((FUSED, 1.1)), faster).configuration.changes)
        assert wrong <= 2
        assert right >= 135


def test_what_is_not_confirmed_together_is_dropped_together() -> None:
    # The search was wrong about channels-last, which in fact spoils everything.
    runs = MadeUpRuns(speeds(optimizer=1.5, channels_last=0.5))
    answer = confirmed(found((FUSED, 1.4), (CHANNELS, 1.03)), runs)
    assert_baseline_wins(answer)
    assert set(outcomes(answer).values()) == {Outcome.NOT_CONFIRMED}


def test_a_crash_of_the_combination_is_no_success() -> None:
    def speed(configuration: Configuration) -> float | RunFailure:
        return failed(message="both at once") if len(configuration.changes) == 2 else 1.5

    answer = confirmed(found((FUSED, 1.4), (CHANNELS, 1.03)), MadeUpRuns(speed))
    assert_baseline_wins(answer)  # a failed run tells nothing of the time that others need
    assert "both at once" in answer.trials[0].reason


def test_flaky_baseline_confirms_nothing() -> None:
    runs = MadeUpRuns(lambda c: 1.5 if c.changes else failed(message="port in use"))
    answer = confirmed(found((FUSED, 1.4)), runs)
    assert_baseline_wins(answer)
    assert "port in use" in answer.trials[0].reason


def test_start_up_is_that_of_a_cold_cache_and_counted_against_the_steps() -> None:
    result = found((COMPILE, 1.4), startup_ns=12e9)
    runs = MadeUpRuns(speeds(compile_mode=1.5), startup_s={"compile_mode": 1.0}, noise=0.002)
    answer = confirmed(result, runs, num_steps=500_000)
    assert answer.startup_ns == 12e9
    assert answer.pays_off_after_steps == pytest.approx(120_000, rel=0.03)
    refused = confirmed(result, MadeUpRuns(speeds(compile_mode=1.5)), num_steps=50_000)
    assert_baseline_wins(refused)
    assert outcomes(refused) == {"compile": Outcome.NOT_WORTH_IT}
    assert "this run has 50,000" in refused.trials[0].reason


def test_nothing_kept_is_nothing_run() -> None:
    runs = MadeUpRuns(speeds())
    answer = confirmed(found(), runs)
    assert_baseline_wins(answer)
    assert not runs.asked


def test_larger_batch_is_confirmed_per_sample() -> None:
    double = made_up("batch=64", loader_batch_size=32, new_batch_size=64)
    runs = MadeUpRuns(lambda c: 1 / 1.4 if c.changes else 1.0)
    answer = confirmed(found((double, 1.3)), runs)
    assert answer.speedup.value == pytest.approx(2 / 1.4, rel=0.03)
    assert answer.tuned_step_ns > answer.baseline_step_ns


def test_load_that_the_search_did_not_meet_is_said() -> None:
    runs = MadeUpRuns(speeds(optimizer=2.0), load_fraction=0.4)
    (caveat,) = confirmed(found((FUSED, 1.4)), runs).caveats
    assert caveat.code == BUSY_MACHINE


@pytest.mark.parametrize("drift", [0.004, -0.004])
def test_drift_confirms_nothing(drift: float) -> None:
    runs = MadeUpRuns(speeds(), drift=drift, noise=0.005)
    assert_baseline_wins(confirmed(found((FUSED, 1.4)), runs))


def test_search_and_confirmation_together() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.6, num_threads=1.2, channels_last=0.9))
    budget = runs.budget(60.0)
    result = search(
        (FUSED, THREADS_1, CHANNELS, COMPILE),
        runs,
        facts=FACTS,
        budget=budget,
        length=RunLength(num_steps=1_000),
    )
    answer = confirm(result, runs, budget=budget, length=RunLength(num_steps=1_000))
    assert answer.configuration == Configuration(optimizer="fused", num_threads=1)
    assert outcomes(answer) == {
        "fused-optimizer": Outcome.KEPT,
        "threads=1": Outcome.KEPT,
        "channels-last": Outcome.NOT_FASTER,
        "compile": Outcome.NOT_WORTH_IT,
    }
    assert answer.speedup.low < 1.92 < answer.speedup.high
