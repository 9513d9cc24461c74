from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, LoaderUse, PlainRun, ThreadTrial, TracedRun
from breakeven.errors import BreakevenError, Caveat, ScriptError
from breakeven.progress import SilentProgress
from breakeven.session import TrainingLength, is_worth_repeating, less_disturbed
from breakeven.session import runs as module
from breakeven.session.measured_step import time_recorded_step, upper_bound_if_disturbed
from breakeven.session.runs import Runs
from breakeven.timing import BUSY_MACHINE, EMULATED_ON_CPU, Measurement
from breakeven.trace import Phase
from factories.runs import (
    SCRIPT,
    Answer,
    ProgressLog,
    ScriptedLauncher,
    device_op,
    failure,
    loader_use,
    plain_run,
    traced_run,
)

DISTURBED = Measurement(samples_ns=(2_000_000,) * 9, waited_ns=(1_500_000,) * 9)


def runs_of(*answers: Answer) -> tuple[Runs, ScriptedLauncher]:
    launcher = ScriptedLauncher(answers)
    return Runs(launcher, SCRIPT, 60.0, SilentProgress()), launcher


def test_trace_asks_for_a_traced_run_and_measure_for_a_plain_one() -> None:
    runs, launcher = runs_of(traced_run(), plain_run())
    assert isinstance(runs.trace(), TracedRun)
    assert isinstance(runs.measure(), PlainRun)
    assert [request.is_traced for request in launcher.requests] == [True, False]
    for request in launcher.requests:
        assert request.target is SCRIPT
        assert request.time_limit_s == 60.0
        assert (request.loader_batch_size, request.new_batch_size) == (0, 0)
        assert {request.has_cuda, request.on_gpu, request.is_moved} == {False}


def test_batch_size_is_set_where_one_is_given() -> None:
    runs, launcher = runs_of(traced_run(), plain_run())
    runs.trace(loader_batch_size=32, new_batch_size=64)
    assert runs.measure_at(128, loader_batch_size=32, budget_s=0.4) is not None
    sizes = [(each.loader_batch_size, each.new_batch_size) for each in launcher.requests]
    assert sizes == [(32, 64), (32, 128)]
    assert launcher.requests[1].budget_s == 0.4


def test_a_gap_is_recorded_after_the_updates_before_it() -> None:
    first = replace(traced_run(), num_host_steps=3)
    runs, launcher = runs_of(first, traced_run(), failure(FailureKind.TIME_LIMIT))
    runs.trace()
    assert isinstance(runs.trace_gap(40), TracedRun)
    # What cannot be recorded costs no answer.
    assert runs.trace_gap(40) is None
    assert [request.records_after for request in launcher.requests] == [0, 43, 43]
    assert all(request.is_traced for request in launcher.requests)


def test_script_that_never_uses_a_gpu_is_recorded_again_as_if_moved() -> None:
    on_host = traced_run(device_op(device="cpu"))
    moved = traced_run()
    runs, launcher = runs_of(on_host, moved, on_host)
    assert runs.trace() is moved
    # From now on it is known; a second look would not find another script.
    assert runs.trace(loader_batch_size=32, new_batch_size=64) is on_host
    assert [request.is_moved for request in launcher.requests] == [False, True, True]


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.EXIT, FailureKind.NO_STEP])
def test_script_that_refuses_the_cpu_is_told_that_there_is_a_gpu(kind: FailureKind) -> None:
    again = plain_run()
    runs, launcher = runs_of(failure(kind), again, plain_run())
    assert runs.measure() is again
    runs.measure_at(64, loader_batch_size=32, budget_s=0.4)
    assert [request.has_cuda for request in launcher.requests] == [False, True, True]


@pytest.mark.parametrize("kind", [FailureKind.TIME_LIMIT, FailureKind.KILLED])
def test_run_that_a_gpu_would_not_save_is_not_repeated(kind: FailureKind) -> None:
    runs, launcher = runs_of(failure(kind))
    with pytest.raises(ScriptError):
        runs.measure()
    assert len(launcher.requests) == 1


@pytest.mark.parametrize(
    ("dtype", "has_hardware", "is_told"),
    [("float16", False, True), ("float16", True, False), ("float32", False, False)],
)
def test_a_step_too_slow_for_its_format_is_told_why(
    dtype: str, has_hardware: bool, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_half_hardware", lambda precision: has_hardware)
    op = device_op(8)
    weight = replace(op.inputs[0], dtype=dtype)
    update = replace(op, inputs=(weight,), phase=Phase.OPTIMIZER)
    runs, _ = runs_of(traced_run(op, update), failure(FailureKind.TIME_LIMIT, "60 s"))
    runs.trace()
    with pytest.raises(ScriptError) as caught:
        runs.measure()
    hint = str(caught.value.hint)
    assert ("emulates fp16, far slower than fp32: let the script keep fp32" in hint) is is_told
    assert "raise --time-limit" in hint


def test_script_that_fails_either_way_is_told_of_the_first_failure() -> None:
    answers = (failure(message="the first"), failure(message="the second"))
    with pytest.raises(ScriptError, match="the first") as caught:
        Runs(ScriptedLauncher(answers), SCRIPT, 60.0, SilentProgress()).measure()
    assert caught.value.output == "what the script printed"


@pytest.mark.parametrize("kind", list(FailureKind))
def test_failed_trace_is_an_error(kind: FailureKind) -> None:
    runs, _ = runs_of(failure(kind))
    with pytest.raises(BreakevenError, match=r"train\.py"):
        runs.trace()


@pytest.mark.parametrize("kind", list(FailureKind))
def test_size_at_which_the_script_fails_is_no_error(kind: FailureKind) -> None:
    runs, _ = runs_of(failure(kind), failure(kind))
    assert runs.measure_at(64, loader_batch_size=32, budget_s=0.4) is None
    assert runs.measure_on_gpu() is None


def test_own_gpu_is_left_to_the_script_and_not_pretended() -> None:
    runs, launcher = runs_of(failure(), plain_run(), plain_run())
    runs.measure()
    assert runs.measure_on_gpu() is not None
    assert (launcher.requests[2].on_gpu, launcher.requests[2].has_cuda) == (True, False)


def test_a_run_that_was_disturbed_is_not_repeated_since_it_waited_itself() -> None:
    slow = replace(plain_run(), measurement=DISTURBED)
    runs, launcher = runs_of(slow)
    assert runs.measure() is slow
    assert len(launcher.requests) == 1


def with_trial(as_set: Measurement, one_thread_ns: int) -> PlainRun:
    trial = ThreadTrial(num_threads=1, measurement=Measurement(samples_ns=(one_thread_ns,) * 9))
    return replace(plain_run(), num_threads=4, measurement=as_set, trials=(trial,))


def disturbed_run() -> PlainRun:
    return replace(plain_run(), measurement=DISTURBED)


@pytest.mark.parametrize(
    ("one_thread_ns", "num_results", "used"), [(500_000, 2, 1), (950_000, 2, 4), (2_000_000, 1, 4)]
)
def test_fewer_threads_are_used_where_they_are_clearly_faster(
    one_thread_ns: int, num_results: int, used: int
) -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    runs, launcher = runs_of(with_trial(as_set, one_thread_ns), plain_run())
    found = time_recorded_step(runs, traced_run())
    assert (found.as_set.num_threads, found.best.num_threads) == (4, used)
    settings = ["1 thread", "4 threads"] if num_results == 2 else [""]
    assert [result.setting for result in found.results] == settings
    assert launcher.requests[0].tries_threads
    runs.measure_at(64, loader_batch_size=32, budget_s=0.4)
    assert launcher.requests[1].configuration.num_threads == (1 if used == 1 else 0)


def test_the_time_for_batches_is_that_of_the_threads_that_are_used() -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    run = replace(with_trial(as_set, 500_000), loader=loader_use(wait_ns=600_000.0))
    (trial,) = run.trials
    for wait_ns, expected in ((200_000.0, 200_000.0), (None, 600_000.0)):
        told = replace(run, trials=(replace(trial, loader_wait_ns=wait_ns),))
        found = time_recorded_step(runs_of(told)[0], traced_run())
        assert found.best.num_threads == 1
        assert found.best.loader is not None
        assert found.best.loader.wait_ns == expected
        assert found.as_set.loader == run.loader


def test_a_disturbed_time_is_a_bound_that_a_slower_number_of_threads_does_not_raise() -> None:
    slow = with_trial(DISTURBED, 3_000_000)
    found = time_recorded_step(runs_of(slow)[0], traced_run())
    assert found.best.num_threads == 4
    # What was left alone is shown all the same.
    assert [result.is_disturbed for result in found.results] == [False, True]
    # Four threads are at most four times as fast as one.
    assert found.results[1].low_ns == pytest.approx(750_000, rel=0.1)
    # Of two that are about as fast, the one that was left alone is the better evidence.
    alike = time_recorded_step(runs_of(with_trial(DISTURBED, 2_100_000))[0], traced_run())
    assert alike.best.num_threads == 1


def test_a_run_that_was_disturbed_and_faster_is_kept() -> None:
    slower, alike = plain_run(3_000_000), plain_run(2_100_000)
    fast = disturbed_run()
    assert less_disturbed(slower, fast) is fast
    assert less_disturbed(fast, alike) is alike


def test_recording_that_was_held_up_is_made_again_on_fewer_threads() -> None:
    alike = with_trial(Measurement(samples_ns=(1_000_000,) * 9), 1_050_000)
    runs, launcher = runs_of(alike, traced_run())
    found = time_recorded_step(runs, traced_run(replace(device_op(), host_ns=20_000_000)))
    assert (found.best.num_threads, len(found.results)) == (1, 2)
    assert launcher.requests[1].is_traced
    assert launcher.requests[1].configuration.num_threads == 1
    # Or it was of steps that do more than most.
    assert [request.records_longer for request in launcher.requests] == [False, True]
    assert found.traced == traced_run()


def test_what_recording_adds_to_many_small_operators_is_no_reason_to_record_again() -> None:
    small = [replace(device_op(), host_ns=6_000)] * 1_000
    runs, launcher = runs_of(plain_run(2_000_000))
    assert len(time_recorded_step(runs, traced_run(*small)).traced.trace.ops) == 1_000
    assert not any(request.is_traced for request in launcher.requests)


def test_progress_hears_stages_and_steps() -> None:
    log = ProgressLog()
    launcher = ScriptedLauncher([traced_run(), plain_run()], num_steps=[1, 7])
    runs = Runs(launcher, SCRIPT, 60.0, log)
    runs.trace(loader_batch_size=32, new_batch_size=64)
    runs.measure()
    assert log.stages == [
        "recording a step on a pretended GPU at batch size 64",
        "measuring the step on this CPU",
    ]
    assert log.details == ["step 1", "step 7"] * 2


def test_silent_progress_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress = SilentProgress()
    progress.begin("recording", expected_s=3.0)
    progress.detail("step 1")
    progress.end()
    assert capfd.readouterr() == ("", "")


def test_a_run_is_expected_to_take_as_long_as_the_one_before() -> None:
    log = ProgressLog()
    runs = Runs(ScriptedLauncher((traced_run(), plain_run())), SCRIPT, 60.0, log)
    runs.trace()
    runs.measure()
    # Nothing is known before the first; the scripted one took no time, but its budget counts.
    assert log.expected_s[0] is None
    assert log.expected_s[1] == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(
    ("dtype", "has_hardware", "is_foretold"),
    [("float16", False, False), ("bfloat16", False, False), ("bfloat16", True, True)],
)
def test_how_long_a_step_takes_in_a_format_that_is_emulated_is_not_foretold(
    dtype: str, has_hardware: bool, is_foretold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_half_hardware", lambda _: has_hardware)
    log = ProgressLog()
    op = device_op(8)
    half = replace(op, inputs=(replace(op.inputs[0], dtype=dtype),))
    runs = Runs(ScriptedLauncher((traced_run(half), plain_run())), SCRIPT, 60.0, log)
    runs.trace()
    runs.measure()
    assert [expected is not None for expected in log.expected_s] == [False, is_foretold]


def test_recordings_and_the_gpu_keep_the_threads_of_the_first() -> None:
    as_set = Measurement(samples_ns=(1_000_000,) * 9)
    runs, launcher = runs_of(with_trial(as_set, 500_000), traced_run(), plain_run())
    time_recorded_step(runs, traced_run())
    runs.trace(loader_batch_size=32, new_batch_size=64)
    runs.measure_on_gpu()
    assert [each.configuration.num_threads for each in launcher.requests[1:]] == [0, 0]


def test_a_script_that_needs_a_gpu_is_compared_at_its_best_too() -> None:
    runs, launcher = runs_of(failure(), with_trial(Measurement(samples_ns=(1_000_000,) * 9), 1_000))
    assert time_recorded_step(runs, traced_run()).best.num_threads == 1
    assert [each.tries_threads for each in launcher.requests] == [True, True]
    assert [each.has_cuda for each in launcher.requests] == [False, True]


def busy_run(step_ns: int, load_fraction: float = 0.5) -> PlainRun:
    return replace(plain_run(step_ns), load_fraction=load_fraction)


def test_a_step_far_longer_than_its_parts_is_not_believed_beside_other_work() -> None:
    traced = traced_run(replace(device_op(), host_ns=1_000_000))
    assert upper_bound_if_disturbed(busy_run(4_900_000), traced) == busy_run(4_900_000)
    # On a quiet machine it takes what it takes.
    assert upper_bound_if_disturbed(busy_run(9_000_000, 0.1), traced) == busy_run(9_000_000, 0.1)
    # In fp32, where it was recorded, it would not take that long.
    emulated = replace(
        busy_run(9_000_000), caveats=(Caveat(code=EMULATED_ON_CPU, message="bf16 is emulated"),)
    )
    assert upper_bound_if_disturbed(emulated, traced) == emulated
    found = upper_bound_if_disturbed(busy_run(9_000_000), traced)
    assert found.measurement.is_disturbed
    assert found.measurement.estimate.low_ns < 1_000_000
    # Nothing is taken for waiting, or a GPU would be predicted without the script's own work.
    assert found.measurement.own_ns == 9_000_000
    assert found.phases is None
    (caveat,) = found.caveats
    assert caveat.code == BUSY_MACHINE
    assert "it took 9× what its operators" in caveat.message


def test_trials_that_are_not_believed_either_are_no_better() -> None:
    traced = traced_run(replace(device_op(), host_ns=1_000_000))
    as_set = Measurement(samples_ns=(9_000_000,) * 9)
    run = replace(with_trial(as_set, 9_500_000), load_fraction=0.5)
    assert upper_bound_if_disturbed(run, traced).trials == ()
    calm = replace(with_trial(as_set, 3_000_000), load_fraction=0.5)
    assert len(upper_bound_if_disturbed(calm, traced).trials) == 1


def test_a_run_is_repeated_only_where_all_threads_were_held_up() -> None:
    assert is_worth_repeating(disturbed_run())
    assert not is_worth_repeating(with_trial(DISTURBED, 3_000_000))
    calm = with_trial(DISTURBED, 3_000_000)
    assert less_disturbed(disturbed_run(), calm) is calm


@pytest.mark.parametrize(
    ("length", "loader", "num_steps", "num_caveats"),
    [
        (TrainingLength(), loader_use(), None, 0),
        (TrainingLength(num_steps=7), None, 7, 0),
        (TrainingLength(num_epochs=3), replace(loader_use(32), batches_per_epoch=32), 96, 0),
        (TrainingLength(num_epochs=3), loader_use(32), None, 1),
        (TrainingLength(num_epochs=3), None, None, 1),
        # Two batches a step, and two steps for each batch.
        (
            TrainingLength(num_epochs=3),
            replace(loader_use(32), batches_per_epoch=32, batches_per_step=2),
            48,
            0,
        ),
        (
            TrainingLength(num_epochs=3),
            replace(loader_use(32), batches_per_epoch=32, fetching_fraction=0.5),
            192,
            0,
        ),
    ],
)
def test_epochs_tell_the_steps_where_the_length_of_the_data_is_known(
    length: TrainingLength, loader: LoaderUse | None, num_steps: int | None, num_caveats: int
) -> None:
    assert length.steps(loader) == num_steps
    assert len(length.caveats(loader)) == num_caveats
