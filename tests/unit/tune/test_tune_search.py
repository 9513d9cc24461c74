"""The search, in worlds whose truth is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.errors import BreakevenError
from breakeven.timing import BUSY_MACHINE, Speedup
from breakeven.trace import Configuration
from breakeven.tune.budget import RunLength
from breakeven.tune.search import search
from breakeven.tune.search_result import SearchResult, ratio_text
from breakeven.verdict import Numerics, Outcome, Trial
from factories.runs import ProgressLog
from factories.trials import (
    ALL,
    BF16,
    CHANNELS,
    COMPILE,
    CUDNN,
    DENORMAL,
    FACTS,
    FUSED,
    GATHER,
    THREADS_1,
    THREADS_2,
    MadeUp,
    MadeUpRuns,
    Speeds,
    failed,
    made_up,
    speeds,
)

LONG_RUN = 10_000_000


def find(
    runs: MadeUpRuns,
    *candidates: MadeUp,
    budget_s: float = 300.0,
    num_steps: int = LONG_RUN,
    is_exact_only: bool = False,
    progress: ProgressLog | None = None,
) -> SearchResult:
    return search(
        candidates,
        runs,
        facts=FACTS,
        budget=runs.budget(budget_s),
        length=RunLength(num_steps=num_steps),
        is_exact_only=is_exact_only,
        progress=progress,
    )


def trial(result: SearchResult, candidate: MadeUp) -> Trial:
    (found,) = (each for each in result.trials if each.candidate == candidate.name)
    return found


def failing(name: str, failure: RunFailure, others: Speeds) -> Speeds:
    """Return a world in which one setting makes runs fail."""
    return lambda configuration: failure if name in configuration.changes else others(configuration)


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_helps_the_script_stays_as_it_is_after_few_runs(seed: int) -> None:
    runs = MadeUpRuns(speeds(), seed=seed)
    result = find(runs, GATHER, FUSED, THREADS_1, DENORMAL, CHANNELS, BF16)
    assert result.configuration == Configuration()
    assert {each.outcome for each in result.trials} == {Outcome.NOT_FASTER}
    assert not runs.gated
    # Six candidates: far below what six pairs of each would take.
    assert len(runs.asked) <= 45


def test_one_that_helps_is_kept_with_the_figures_that_show_it() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5))
    result = find(runs, DENORMAL, FUSED, CHANNELS)
    assert result.configuration == Configuration(optimizer="fused")
    kept = trial(result, FUSED)
    assert kept.outcome is Outcome.KEPT
    assert kept.low is not None
    assert kept.high is not None
    assert kept.low < 1.5 < kept.high
    assert kept.low > 1.0
    assert kept.num_runs >= 2
    assert kept.step_ns == pytest.approx(200_000, rel=0.05)
    assert f"after {kept.num_runs} pairs of runs" in kept.reason
    # In the order of predicted gain, whatever the order in which they are listed.
    names = [each.candidate for each in result.trials]
    assert names == ["fused-optimizer", "channels-last", "flush-denormal"]


def test_a_candidate_is_tried_on_top_of_what_is_kept_and_bases_are_run_in_turn() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5, num_threads=1.3))
    result = find(runs, FUSED, THREADS_1)
    both = Configuration(optimizer="fused", num_threads=1)
    assert result.configuration == both
    fused, plain = Configuration(optimizer="fused"), Configuration()
    # The first run of all serves the first pair; A B, B A, then the gate; A B, B A again.
    assert runs.asked[:4] == [plain, fused, fused, plain]
    assert runs.asked[4:8] == [fused, both, both, fused]
    assert runs.gated == [(fused, Numerics.REORDERED), (both, Numerics.REORDERED)]


def test_one_thread_is_tried_first_and_wins_ties_where_its_runs_take_turns() -> None:
    """Without turns a gain of 6 % drowns in runs that vary by 10 %."""
    kept: list[Configuration] = []
    for takes_turns in (False, True):
        runs = MadeUpRuns(speeds(optimizer=1.06), noise=0.1, seed=3, takes_turns=takes_turns)
        kept.append(find(runs, FUSED, THREADS_1, DENORMAL).configuration)
        assert runs.asked[1].num_threads == int(takes_turns)
    assert kept == [Configuration(), Configuration(optimizer="fused", num_threads=1)]


def test_where_one_thread_is_slower_candidates_are_still_compared_on_it() -> None:
    runs = MadeUpRuns(speeds(num_threads=0.8, optimizer=1.06), noise=0.1, seed=4, takes_turns=True)
    result = find(runs, FUSED, THREADS_1, DENORMAL)
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, THREADS_1).outcome is Outcome.NOT_FASTER
    assert trial(result, FUSED).reason.endswith("(both on one thread)")
    # The numbers are those of the step as it will run.
    assert runs.gated == [(Configuration(optimizer="fused"), Numerics.REORDERED)]


def test_runs_of_several_threads_that_take_turns_are_compared_as_they_are() -> None:
    kept: list[Configuration] = []
    for takes_turns in (False, True):
        runs = MadeUpRuns(speeds(optimizer=1.06), noise=0.1, seed=3, takes_long_turns=takes_turns)
        result = find(runs, FUSED, DENORMAL)
        kept.append(result.configuration)
        assert "one thread" not in trial(result, FUSED).reason
    assert kept == [Configuration(), Configuration(optimizer="fused")]


def test_one_thread_that_fails_says_nothing_of_its_speed() -> None:
    def speed(configuration: Configuration) -> float | RunFailure:
        if configuration.num_threads == 1:
            return failed()
        return 1.5 if configuration.optimizer else 1.0

    result = find(MadeUpRuns(speed, takes_turns=True), FUSED, THREADS_1)
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, THREADS_1).outcome is Outcome.CRASHED
    assert "one thread" not in trial(result, FUSED).reason


def test_where_one_thread_is_far_slower_nothing_is_compared_on_it() -> None:
    runs = MadeUpRuns(speeds(num_threads=0.3, optimizer=1.5), takes_turns=True)
    result = find(runs, FUSED, THREADS_1)
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, THREADS_1).num_runs == 1
    assert "one thread" not in trial(result, FUSED).reason


# What a whole step as one call does without is set back with it.
STEP = MadeUp(
    "fast-step", {"fast_step": True, "optimizer": ""}, gain=0.9, cost_s=2.0, family="step"
)


def test_a_step_as_one_call_comes_first_where_it_promises_much() -> None:
    runs = MadeUpRuns(speeds(fast_step=10.0, num_threads=1.2), takes_turns=True)
    result = find(runs, FUSED, THREADS_1, STEP)
    assert runs.asked[1] == Configuration(fast_step=True)
    assert result.trials[0].candidate == "fast-step"
    assert result.configuration == Configuration(fast_step=True, num_threads=1)
    little = replace(STEP, gain=0.3)
    runs = MadeUpRuns(speeds(fast_step=10.0), takes_turns=True)
    find(runs, FUSED, THREADS_1, little)
    assert runs.asked[1] != Configuration(fast_step=True)


@pytest.mark.parametrize(("factor", "is_kept"), [(1.6, True), (1.1, False)])
def test_a_step_as_one_call_replaces_what_it_does_without_where_it_is_faster(
    factor: float, *, is_kept: bool
) -> None:
    runs = MadeUpRuns(speeds(optimizer=1.3, gathers_batches=1.2, fast_step=factor))
    result = find(runs, FUSED, GATHER, replace(STEP, gain=0.1))
    others = {"fast_step": True} if is_kept else {"optimizer": "fused"}
    assert result.configuration == Configuration(gathers_batches=True, **others)
    names = {each.candidate.name for each in result.kept}
    assert names == {"gather-batches", "fast-step" if is_kept else "fused-optimizer"}
    assert trial(result, FUSED).outcome is (Outcome.NOT_FASTER if is_kept else Outcome.KEPT)
    assert not is_kept or "fast-step does without" in trial(result, FUSED).reason


def test_last_run_of_the_base_serves_the_next_candidate() -> None:
    runs = MadeUpRuns(speeds(), noise=0.0)
    find(runs, CHANNELS, DENORMAL)
    plain = Configuration()
    channels, denormal = Configuration(channels_last=True), Configuration(flushes_denormals=True)
    # Without noise two pairs suffice to give one up.
    assert runs.asked == [plain, channels, channels, plain, denormal, denormal, plain]


def test_one_far_slower_is_given_up_after_a_single_pair() -> None:
    runs = MadeUpRuns(speeds(autocast=0.4))
    result = find(runs, BF16)
    assert trial(result, BF16).outcome is Outcome.NOT_FASTER
    assert trial(result, BF16).num_runs == 1
    assert len(runs.asked) == 2


def test_of_a_family_the_best_is_kept() -> None:
    runs = MadeUpRuns(lambda c: {0: 1.0, 1: 1.6, 2: 1.25}[c.num_threads])
    result = find(runs, THREADS_1, THREADS_2)
    assert result.configuration == Configuration(num_threads=1)
    assert trial(result, THREADS_2).outcome is Outcome.NOT_FASTER
    assert "threads=1" in trial(result, THREADS_2).reason


def test_of_two_as_fast_the_one_listed_first_is_kept() -> None:
    for first, second in ((THREADS_1, THREADS_2), (THREADS_2, THREADS_1)):
        result = find(MadeUpRuns(speeds(num_threads=1.5), noise=0.002), first, second)
        assert [each.candidate for each in result.kept] == [first]


def test_settings_of_a_family_are_not_tried_once_another_one_is_kept() -> None:
    unset = made_up("threads=own", "threads", num_threads=2, needs="num_threads", gain=0.9)
    result = find(MadeUpRuns(speeds(num_threads=1.5)), THREADS_1, unset)
    assert result.configuration == Configuration(num_threads=1)
    assert trial(result, unset).outcome is Outcome.NOT_APPLICABLE
    assert trial(result, unset).num_runs == 0


def test_what_builds_on_another_waits_for_it() -> None:
    runs = MadeUpRuns(
        speeds(compile_mode=1.6, benchmarks_cudnn=1.4), startup_s={"compile_mode": 12}
    )
    result = find(runs, CUDNN, COMPILE)
    assert result.configuration == Configuration(compile_mode="default", benchmarks_cudnn=True)
    assert [each.candidate for each in result.trials] == ["compile", "cudnn-benchmark"]
    without = find(MadeUpRuns(speeds(benchmarks_cudnn=1.4)), CUDNN, COMPILE)
    assert trial(without, CUDNN).outcome is Outcome.NOT_APPLICABLE
    assert trial(without, CUDNN).reason == "compile_mode is not set"


def test_two_that_interact_badly_end_as_the_better_one() -> None:
    def speed(configuration: Configuration) -> float:
        if configuration.gathers_batches and configuration.optimizer:
            return 2.0  # the optimizer does it all; gathering adds nothing to it
        return 2.0 if configuration.optimizer else 1.3 if configuration.gathers_batches else 1.0

    runs = MadeUpRuns(speed)
    # Predicted to gain more, gathering comes first, and is kept until the re-check.
    result = find(runs, GATHER, made_up("fused-optimizer", optimizer="fused", gain=0.1))
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, GATHER).outcome is Outcome.NOT_FASTER
    assert "no longer faster" in trial(result, GATHER).reason


def test_two_that_spoil_each_other_are_not_combined() -> None:
    def speed(configuration: Configuration) -> float:
        if configuration.channels_last and configuration.autocast:
            return 0.5
        return {0: 1.0, 1: 1.5}[len(configuration.changes)]

    result = find(MadeUpRuns(speed), CHANNELS, BF16)
    assert result.configuration == Configuration(autocast="bfloat16")
    assert trial(result, CHANNELS).outcome is Outcome.NOT_FASTER


@pytest.mark.parametrize(
    ("failure", "outcome", "reason"),
    [
        (failed(message="bad\nmore"), Outcome.CRASHED, "RuntimeError: bad"),
        (failed(FailureKind.TIME_LIMIT, "12 s"), Outcome.TIME_LIMIT, "12 s"),
        (failed(FailureKind.KILLED, "SIGSEGV"), Outcome.CRASHED, "SIGSEGV"),
        (failed(FailureKind.KILLED, "SIGKILL"), Outcome.OUT_OF_MEMORY, "memory"),
        (failed(FailureKind.EXIT, "7"), Outcome.CRASHED, "status 7"),
        (failed(FailureKind.NO_STEP, ""), Outcome.CRASHED, "optimizer step"),
        (
            failed(message="CUDA out of memory. Tried", exception="OutOfMemoryError"),
            Outcome.OUT_OF_MEMORY,
            "CUDA out of memory",
        ),
        (
            failed(message="DefaultCPUAllocator: can't allocate memory: you tried"),
            Outcome.OUT_OF_MEMORY,
            "can't allocate memory",
        ),
    ],
)
def test_search_goes_on_after_a_failure_and_says_what_happened(
    failure: RunFailure, outcome: Outcome, reason: str
) -> None:
    runs = MadeUpRuns(failing("gathers_batches", failure, speeds(optimizer=1.5)))
    result = find(runs, GATHER, FUSED)
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, GATHER).outcome is outcome
    assert reason in trial(result, GATHER).reason
    assert "\n" not in trial(result, GATHER).reason
    assert trial(result, GATHER).speedup is None


def test_wrong_numbers_are_refused_and_only_what_is_faster_is_checked() -> None:
    runs = MadeUpRuns(speeds(autocast=2.0, num_threads=1.5), wrong=("autocast",))
    result = find(runs, BF16, THREADS_2, DENORMAL)
    assert result.configuration == Configuration(num_threads=2)
    refused = trial(result, BF16)
    assert refused.outcome is Outcome.WRONG_NUMBERS
    assert "layers.0.weight" in refused.reason
    assert refused.speedup == pytest.approx(2.0, rel=0.1)
    checked = [configuration for configuration, _ in runs.gated]
    assert Configuration(flushes_denormals=True, num_threads=2) not in checked
    # The next one is judged by its own class, not by that of the refused one.
    assert runs.gated[-1] == (Configuration(num_threads=2), Numerics.REORDERED)


def test_next_best_of_a_family_is_kept_where_the_best_computes_wrong_numbers() -> None:
    wrong = made_up("compile:max", "compile", benchmarks_cudnn=True, gain=0.5)
    runs = MadeUpRuns(speeds(benchmarks_cudnn=2.0, compile_mode=1.5), wrong=("benchmarks_cudnn",))
    right = made_up("compile", "compile", compile_mode="default")
    result = find(runs, wrong, right)
    assert result.configuration == Configuration(compile_mode="default")
    assert trial(result, wrong).outcome is Outcome.WRONG_NUMBERS


def test_exact_leaves_out_what_may_change_a_bit() -> None:
    runs = MadeUpRuns(speeds(gathers_batches=1.3, optimizer=2.0))
    result = find(runs, GATHER, FUSED, BF16, is_exact_only=True)
    assert result.configuration == Configuration(gathers_batches=True)
    assert trial(result, FUSED).outcome is Outcome.NOT_APPLICABLE
    assert runs.gated == [(Configuration(gathers_batches=True), Numerics.EXACT)]


def test_compile_that_cannot_pay_is_not_even_tried() -> None:
    runs = MadeUpRuns(speeds(compile_mode=3.0), startup_s={"compile_mode": 12})
    # 15 s of steps, of which it would have to save four fifths.
    result = find(runs, COMPILE, num_steps=50_000)
    assert trial(result, COMPILE).outcome is Outcome.NOT_WORTH_IT
    reason = trial(result, COMPILE).reason
    assert "12 s later" in reason
    assert "50,000 steps of this run take 15 s" in reason
    assert runs.asked == [Configuration()]


def test_compile_that_pays_off_too_late_is_measured_and_dropped() -> None:
    runs = MadeUpRuns(speeds(compile_mode=1.5), startup_s={"compile_mode": 12}, noise=0.002)
    result = find(runs, COMPILE, num_steps=80_000)
    dropped = trial(result, COMPILE)
    assert dropped.outcome is Outcome.NOT_WORTH_IT
    # 12 s, as the first run showed, not the 1.2 s of those that found it compiled; 0.1 ms a step.
    assert dropped.startup_ns == pytest.approx(12e9, rel=0.01)
    assert dropped.pays_off_after_steps == pytest.approx(120_000, rel=0.05)
    assert "this run has 80,000" in dropped.reason
    again = MadeUpRuns(speeds(compile_mode=1.5), startup_s={"compile_mode": 12}, noise=0.002)
    assert find(again, COMPILE, num_steps=200_000).configuration.compile_mode == "default"


@pytest.mark.parametrize("drift", [0.01, -0.01])
def test_a_machine_that_slows_down_makes_nothing_look_faster(drift: float) -> None:
    runs = MadeUpRuns(speeds(num_threads=1.3), drift=drift)
    result = find(runs, FUSED, CHANNELS, DENORMAL, THREADS_1)
    assert result.configuration == Configuration(num_threads=1)


def test_on_a_noisy_machine_hardly_anything_useless_is_kept_and_large_gains_are_found() -> None:
    useless = found = 0
    for seed in range(60):
        runs = MadeUpRuns(speeds(optimizer=2.0), noise=0.08, seed=seed)
        result = find(runs, FUSED, DENORMAL, CHANNELS)
        useless += sum(each.candidate is not FUSED for each in result.kept)
        found += result.configuration.optimizer == "fused"
    assert found >= 55
    assert useless <= 6


def test_one_hiccup_decides_nothing() -> None:
    # Of the runs 2, 3 (candidate) and 4, 5 (base) any one takes three times as long.
    for held_up in range(1, 6):
        slow = {held_up: 3.0}
        assert find(MadeUpRuns(speeds(), hiccups=slow), CHANNELS).configuration == Configuration()


def test_loaded_machine_needs_more_pairs_and_says_so() -> None:
    quiet = find(MadeUpRuns(speeds(optimizer=1.15)), FUSED)
    loaded = find(MadeUpRuns(speeds(optimizer=1.15), load_fraction=0.3), FUSED)
    assert trial(loaded, FUSED).num_runs > trial(quiet, FUSED).num_runs
    assert not quiet.caveats
    (caveat,) = loaded.caveats
    assert caveat.code == BUSY_MACHINE
    assert "30 %" in caveat.message


def test_what_does_not_fit_into_the_budget_is_said_and_the_confirmation_keeps_its_time() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5))
    result = find(runs, *ALL, budget_s=12.0)
    assert {each.candidate for each in result.trials} == {each.name for each in ALL}
    assert trial(result, FUSED).outcome is Outcome.KEPT
    for late in (COMPILE, DENORMAL):
        assert trial(result, late).outcome is Outcome.OUT_OF_BUDGET
    assert "of the budget of 12 s" in trial(result, COMPILE).reason
    # Four runs for the confirmation.
    assert runs.now_s <= 12.0 - 4 * 0.6


def test_what_is_cheap_to_try_comes_before_a_compiler_that_promises_a_little_more() -> None:
    runs = MadeUpRuns(speeds())
    result = find(runs, COMPILE, THREADS_1)
    assert [each.candidate for each in result.trials] == ["threads=1", "compile"]


def test_members_of_a_family_do_not_use_up_the_budget_together() -> None:
    other = made_up("compile=max", "compile", compile_mode="max-autotune", cost_s=12.0, gain=0.3)
    runs = MadeUpRuns(speeds(), startup_s={"compile_mode": 12.0})
    result = find(runs, COMPILE, other, budget_s=24.0)
    assert trial(result, COMPILE).num_runs > 0
    assert trial(result, other).outcome is Outcome.OUT_OF_BUDGET
    assert runs.now_s <= 24.0


def test_a_compiler_that_hangs_leaves_time_for_the_confirmation() -> None:
    hanging = failing("compile_mode", failed(FailureKind.TIME_LIMIT, "40 s"), speeds(optimizer=2.0))
    runs = MadeUpRuns(hanging)
    result = find(runs, FUSED, COMPILE, budget_s=30.0)
    assert result.configuration == Configuration(optimizer="fused")
    assert trial(result, COMPILE).outcome is Outcome.TIME_LIMIT
    assert runs.now_s <= 30.0 - 4 * 0.6


def test_trials_that_bring_nothing_take_half_of_the_budget_at_most() -> None:
    runs = MadeUpRuns(speeds(flushes_denormals=1.5))
    result = find(runs, FUSED, GATHER, THREADS_1, CHANNELS, BF16, DENORMAL, budget_s=20.0)
    assert runs.now_s <= 10.0
    assert result.configuration == Configuration()
    last = trial(result, DENORMAL)
    assert last.outcome is Outcome.OUT_OF_BUDGET
    assert re.search(r"not tried: one more pair of runs takes about 1\.2 s; .* 20 s", last.reason)


def test_what_is_kept_is_not_wasted() -> None:
    runs = MadeUpRuns(speeds(flushes_denormals=1.5, optimizer=1.5, gathers_batches=1.5))
    result = find(runs, FUSED, GATHER, THREADS_1, CHANNELS, DENORMAL, budget_s=60.0)
    assert trial(result, DENORMAL).outcome is Outcome.KEPT


def test_no_budget_tries_nothing_and_leaves_nothing_out() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5))
    result = find(runs, FUSED, COMPILE, budget_s=0.0)
    assert {each.outcome for each in result.trials} == {Outcome.OUT_OF_BUDGET}
    assert runs.asked == [Configuration()]


def test_undecided_when_the_time_is_up_is_no_success() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.04), noise=0.02)
    result = find(runs, FUSED, budget_s=8.0)
    assert result.configuration == Configuration()
    assert trial(result, FUSED).outcome is Outcome.OUT_OF_BUDGET
    assert "not decided" in trial(result, FUSED).reason


def test_a_candidate_that_leaks_is_refused() -> None:
    runs = MadeUpRuns(
        speeds(optimizer=1.5), extras={"optimizer": {"peak_memory_bytes": 1_000_000_000}}
    )
    result = find(runs, FUSED)
    assert trial(result, FUSED).outcome is Outcome.OUT_OF_MEMORY
    assert "1 GB" in trial(result, FUSED).reason
    assert "400 MB" in trial(result, FUSED).reason


def test_warnings_of_what_is_kept_are_told() -> None:
    runs = MadeUpRuns(speeds(optimizer=1.5), extras={"optimizer": {"warnings": ("deprecated",)}})
    (caveat,) = find(runs, FUSED).caveats
    assert caveat.code == "candidate-warns"
    assert "fused-optimizer" in caveat.message
    assert "deprecated" in caveat.message


def test_setting_that_takes_no_hold_is_not_applicable_after_one_run() -> None:
    runs = MadeUpRuns(speeds(), extras={"optimizer": {"effects": {"optimizer": 0}}})
    result = find(runs, FUSED)
    assert trial(result, FUSED).outcome is Outcome.NOT_APPLICABLE
    assert len(runs.asked) == 2


def test_larger_batches_are_compared_per_sample() -> None:
    def speed(configuration: Configuration) -> float:
        return 1 / 1.6 if configuration.new_batch_size else 1.0  # twice the samples in 1.6 steps

    double = made_up("batch=64", loader_batch_size=32, new_batch_size=64)
    result = find(MadeUpRuns(speed), double)
    assert trial(result, double).speedup == pytest.approx(1.25, rel=0.05)
    assert trial(result, double).outcome is Outcome.KEPT


def test_script_that_fails_as_it_is_ends_the_search() -> None:
    runs = MadeUpRuns(lambda _: failed(message="no data"))
    with pytest.raises(BreakevenError, match="no data"):
        find(runs, FUSED)
    assert len(runs.asked) == 2


def test_one_failure_of_the_script_as_it_is_is_passed_over() -> None:
    first = iter([failed()])
    runs = MadeUpRuns(lambda c: next(first, 1.5 if c.optimizer else 1.0))
    assert find(runs, FUSED).configuration == Configuration(optimizer="fused")


def test_what_begins_to_fail_after_it_was_kept_is_dropped() -> None:
    runs = MadeUpRuns(lambda _: 1.0)

    def speed(configuration: Configuration) -> float | RunFailure:
        if configuration == Configuration(optimizer="fused") and len(runs.gated):
            return failed(message="second thoughts")
        return 1.5 if configuration.optimizer else 1.3 if configuration.num_threads else 1.0

    runs.speed = speed
    result = find(runs, FUSED, THREADS_1)
    assert result.configuration == Configuration(num_threads=1)
    assert trial(result, FUSED).outcome is Outcome.CRASHED
    assert "second thoughts" in trial(result, FUSED).reason


def test_small_script_needs_no_more_than_two_thirds_of_a_minute() -> None:
    for seed in range(10):
        runs = MadeUpRuns(
            speeds(optimizer=1.6, gathers_batches=1.5, autocast=0.4, num_threads=1.1), seed=seed
        )
        result = find(runs, *ALL, num_steps=20_000, budget_s=60.0)
        assert {"optimizer", "gathers_batches"} <= set(result.configuration.changes)
        assert runs.now_s < 40.0


def test_progress_tells_what_is_tried_and_how_it_stands() -> None:
    progress = ProgressLog()
    find(MadeUpRuns(speeds(optimizer=1.5)), FUSED, progress=progress)
    assert progress.stages == ["measuring the step as it is", "trying fused-optimizer"]
    assert progress.details[0].startswith("fused-optimizer: 1.")
    assert "after 1 pair of runs" in progress.details[0]


def test_figures_are_told_as_far_as_they_say_anything() -> None:
    close = Speedup(value=1.312, low=1.22, high=1.41, num_pairs=2)
    assert ratio_text(close) == "1.31× [1.22, 1.41] after 2 pairs of runs"
    wild = Speedup(value=2.97, low=1e-31, high=1e31, num_pairs=2)
    assert ratio_text(wild) == "2.97× after 2 pairs of runs, which differ too much to say more"
