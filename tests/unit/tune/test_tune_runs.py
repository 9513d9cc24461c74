"""The runs of a search: what is asked of the launcher, and what its answers say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, PlainRun, RunFailure, RunRequest
from breakeven.timing import Measurement, TurnKind
from breakeven.trace import Configuration, Location
from breakeven.tune import runs as runs_module
from breakeven.tune.budget import TimeBudget
from breakeven.tune.runs import RunResult, TrialRuns, failure_outcome
from breakeven.verdict import Numerics, Outcome
from factories.runs import SCRIPT, Answer, ScriptedLauncher, failure, plain_run

FUSED = Configuration(optimizer="fused")


def runs_of(*answers: Answer, time_limit_s: float = 600.0) -> tuple[TrialRuns, ScriptedLauncher]:
    launcher = ScriptedLauncher(answers)
    request = RunRequest(target=SCRIPT, is_traced=True, time_limit_s=time_limit_s, on_gpu=True)
    return TrialRuns(launcher, request, lambda *_: None), launcher


def measured(run: PlainRun) -> RunResult:
    result = runs_of(run)[0].measure(Configuration())
    assert isinstance(result, RunResult)
    return result


def test_each_run_is_a_plain_one_under_its_configuration_with_the_scripts_own_compile() -> None:
    runs, launcher = runs_of(plain_run(), plain_run())
    runs.measure(Configuration())
    runs.measure(FUSED)
    assert [each.configuration for each in launcher.requests] == [Configuration(), FUSED]
    for request in launcher.requests:
        assert not request.is_traced
        assert request.keeps_compile
        assert request.on_gpu
        assert request.target is SCRIPT
        assert 0.3 <= request.budget_s <= 0.5


def test_median_is_that_of_the_steady_steps() -> None:
    samples = (9_000, 110, 100, 90, 105, 95, 100)
    run = replace(plain_run(), measurement=Measurement(samples_ns=samples, num_warmup=1))
    assert measured(run).step_ns == 100


def test_turns_have_the_median_of_their_steady_steps() -> None:
    samples = (9_000, 110, 100, 90, 105, 95, 100)
    measurement = Measurement(samples_ns=samples, num_warmup=1)
    run = replace(plain_run(), measurement=measurement, turns=(2, 2, 2, 3, 3, 3, 5))
    assert measured(run).turns_ns == {2: 105, 3: 95, 5: 100}


def test_steps_that_other_processes_delayed_are_left_out_of_their_turns() -> None:
    samples = (9_000, 110, 100, 2_000, 105, 95, 100)
    waits = (0, 0, 0, 1_900, 0, 0, 0)
    measurement = Measurement(samples_ns=samples, num_warmup=1, waited_ns=waits)
    run = replace(plain_run(), measurement=measurement, turns=(2, 2, 2, 3, 3, 3, 5))
    result = measured(run)
    assert result.turns_ns == {2: 105, 3: 100, 5: 100}
    assert result.step_ns == 100
    assert result.bounds_ns is None


def test_run_with_every_step_delayed_has_bounds() -> None:
    waits = (0, *(700,) * 8)
    measurement = Measurement(samples_ns=(9_000, *(1_000,) * 8), num_warmup=1, waited_ns=waits)
    result = measured(replace(plain_run(), measurement=measurement, turns=(1,) * 9))
    assert result.bounds_ns == (300, 1_000)
    assert result.step_ns == 300
    assert result.turns_ns == {}


@pytest.mark.parametrize("num_threads", [1, 2])
def test_turns_are_short_on_one_thread_alone(num_threads: int) -> None:
    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=60.0)
    launchers = ScriptedLauncher([]), ScriptedLauncher([])
    runs = TrialRuns(
        launchers[0], request, lambda *_: None, second=launchers[1], num_threads=num_threads
    )
    one, two = Configuration(num_threads=1), Configuration(num_threads=2)
    default = TurnKind.SHORT if num_threads == 1 else TurnKind.LONG
    assert runs.turns_with(FUSED, FUSED) is default
    assert runs.turns_with(Configuration(), one) is default
    assert runs.turns_with(one, one) is TurnKind.SHORT
    assert runs.turns_with(one, two) is TurnKind.LONG
    assert runs.turns_with(two, FUSED) is TurnKind.LONG
    # Without a second launcher there are none.
    alone = TrialRuns(launchers[0], request, lambda *_: None, num_threads=1)
    assert alone.turns_with(FUSED, FUSED) is TurnKind.NONE
    # Idle threads of another pool do not leave the processors to the other run.
    spinning = TrialRuns(
        launchers[0], request, lambda *_: None, second=launchers[1], takes_long_turns=False
    )
    assert spinning.turns_with(one, two) is TurnKind.NONE
    assert spinning.turns_with(one, one) is TurnKind.SHORT


@pytest.mark.parametrize("is_contender_first", [False, True])
def test_runs_in_turns_are_asked_for_as_such_and_told_apart(*, is_contender_first: bool) -> None:
    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=60.0)
    ran = [replace(plain_run(), peak_memory_bytes=number) for number in (1, 2)]
    launchers = [ScriptedLauncher([each]) for each in ran]
    runs = TrialRuns(launchers[0], request, lambda *_: None, second=launchers[1], num_threads=2)
    base, contender = runs.pair(
        Configuration(), FUSED, is_contender_first=is_contender_first, is_new=True
    )
    assert isinstance(base, RunResult)
    assert isinstance(contender, RunResult)
    assert (base.peak_memory_bytes, contender.peak_memory_bytes) == (
        (2, 1) if is_contender_first else (1, 2)
    )
    assert base.turns is contender.turns is TurnKind.LONG
    order = (FUSED, Configuration()) if is_contender_first else (Configuration(), FUSED)
    for launcher, configuration in zip(launchers, order, strict=True):
        (asked,) = launcher.requests
        assert asked.configuration == configuration
        assert asked.turns is TurnKind.LONG
        assert asked.budget_s > 1.0


def test_start_up_ends_with_the_warm_up() -> None:
    samples = (5_000, 300, 100, 100, 100, 100, 100)
    measurement = Measurement(samples_ns=samples, num_warmup=2)
    run = replace(plain_run(), measurement=measurement, startup_ns=70_000)
    # Of the first two samples all but what two steady steps take.
    assert measured(run).startup_ns == 70_000 + 5_300 - 200


def test_what_a_run_says_of_itself_is_passed_on() -> None:
    run = replace(
        plain_run(), warnings=("deprecated",), effects={"optimizer": 2}, load_fraction=0.4
    )
    result = measured(run)
    assert result.warnings == ("deprecated",)
    assert result.effects == {"optimizer": 2}
    assert result.peak_memory_bytes == run.peak_memory_bytes
    assert result.load_fraction == 0.4


def test_failure_is_returned_as_it_is() -> None:
    runs, _ = runs_of(failure(FailureKind.TIME_LIMIT, "12 s"))
    assert runs.measure(FUSED) == failure(FailureKind.TIME_LIMIT, "12 s")


def test_hanging_run_is_ended_by_what_the_script_takes_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = iter([0.0, 0.6, 10.0, 10.6, 20.0, 28.0, 30.0, 30.6, 40.0, 40.6, 50.0, 50.6])
    monkeypatch.setattr(runs_module, "monotonic", lambda: next(now_s))
    runs, launcher = runs_of(*[plain_run()] * 6, time_limit_s=60.0)
    runs.measure(Configuration())  # takes 0.6 s
    runs.measure(FUSED)
    runs.measure(Configuration())  # takes 8 s
    runs.measure(FUSED)
    runs.measure(FUSED, extra_s=30.0)
    runs.measure(FUSED, extra_s=30.0, longest_s=44.5)
    limits_s = [request.time_limit_s for request in launcher.requests]
    # The user's own limit at first and at most; 10 s at least; else five times the script's time.
    # What is left of a budget cuts off what a compiler gets besides.
    assert limits_s == [60.0, 10.0, 10.0, 40.0, 60.0, 45.0]


def test_gate_is_asked_for_the_numbers() -> None:
    asked: list[tuple[Configuration, Numerics]] = []

    def gate(configuration: Configuration, numerics: Numerics) -> str | None:
        asked.append((configuration, numerics))
        return "they differ"

    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=60.0)
    runs = TrialRuns(ScriptedLauncher([]), request, gate)
    assert runs.check_numbers(FUSED, Numerics.REORDERED) == "they differ"
    assert asked == [(FUSED, Numerics.REORDERED)]


def test_failure_names_the_users_line() -> None:
    broken = RunFailure(
        kind=FailureKind.EXCEPTION,
        message="shapes differ\nand much more",
        exception="RuntimeError",
        location=Location(file="/home/me/train.py", line=12),
    )
    assert failure_outcome(broken) == (
        Outcome.CRASHED,
        "RuntimeError: shapes differ (/home/me/train.py:12)",
    )


def test_budget_counts_from_its_creation() -> None:
    now_s = 100.0
    budget = TimeBudget(30.0, lambda: now_s)
    now_s = 120.0
    assert budget.spent_s == 20.0
    assert budget.left_s == 10.0
    assert budget.fits(10.0)
    assert not budget.fits(10.1)
    now_s = 140.0
    assert budget.left_s == 0.0
    with pytest.raises(ValueError, match="-1"):
        TimeBudget(-1.0)
    with pytest.raises(ValueError, match="nan"):
        TimeBudget(float("nan"))
