from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, PlainRun, TracedRun
from breakeven.errors import BreakevenError, ScriptError
from breakeven.progress import SilentProgress
from breakeven.studies import runner as module
from breakeven.studies.runner import Change, Runner
from breakeven.timing import Measurement
from breakeven.trace import Phase
from factories.runs import (
    SCRIPT,
    Answer,
    ProgressLog,
    ScriptedLauncher,
    device_op,
    failure,
    plain_run,
    traced_run,
)

DOUBLED = Change(old_batch_size=32, new_batch_size=64)
DISTURBED = Measurement(samples_ns=(2_000_000,) * 9, waited_ns=(1_500_000,) * 9)


def runner_of(*answers: Answer) -> tuple[Runner, ScriptedLauncher]:
    launcher = ScriptedLauncher(answers)
    return Runner(launcher, SCRIPT, 60.0, SilentProgress()), launcher


def test_trace_asks_for_a_traced_run_and_measure_for_a_plain_one() -> None:
    runner, launcher = runner_of(traced_run(), plain_run())
    assert isinstance(runner.record(), TracedRun)
    assert isinstance(runner.time(), PlainRun)
    assert [request.is_traced for request in launcher.requests] == [True, False]
    for request in launcher.requests:
        assert request.target is SCRIPT
        assert request.time_limit_s == 60.0
        assert (request.loader_batch_size, request.new_batch_size) == (0, 0)
        assert {request.has_cuda, request.on_gpu, request.is_moved} == {False}


def test_batch_size_is_set_where_one_is_given() -> None:
    runner, launcher = runner_of(traced_run(), plain_run())
    runner.record(DOUBLED, " at batch size 64")
    assert runner.time_at(Change(old_batch_size=32, new_batch_size=128), budget_s=0.4) is not None
    sizes = [(each.loader_batch_size, each.new_batch_size) for each in launcher.requests]
    assert sizes == [(32, 64), (32, 128)]
    assert launcher.requests[1].budget_s == 0.4


def test_a_gap_is_recorded_after_the_updates_before_it() -> None:
    runner, launcher = runner_of(traced_run(), traced_run(), failure(FailureKind.TIME_LIMIT))
    runner.record()
    assert isinstance(runner.record_gap(40), TracedRun)
    # What cannot be recorded costs no answer.
    assert runner.record_gap(40) is None
    assert [request.records_after for request in launcher.requests] == [0, 40, 40]
    assert all(request.is_traced for request in launcher.requests)


def test_script_that_never_uses_a_gpu_is_recorded_again_as_if_moved() -> None:
    on_host = traced_run(device_op(device="cpu"))
    moved = traced_run()
    runner, launcher = runner_of(on_host, moved, on_host)
    assert runner.record() is moved
    # From now on it is known; a second look would not find another script.
    assert runner.record(DOUBLED, " at batch size 64") is on_host
    assert [request.is_moved for request in launcher.requests] == [False, True, True]


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.EXIT, FailureKind.NO_STEP])
def test_script_that_refuses_the_cpu_is_told_that_there_is_a_gpu(kind: FailureKind) -> None:
    again = plain_run()
    runner, launcher = runner_of(failure(kind), again, plain_run())
    assert runner.time() is again
    runner.time_at(DOUBLED, budget_s=0.4)
    assert [request.has_cuda for request in launcher.requests] == [False, True, True]


@pytest.mark.parametrize("kind", [FailureKind.TIME_LIMIT, FailureKind.KILLED])
def test_run_that_a_gpu_would_not_save_is_not_repeated(kind: FailureKind) -> None:
    runner, launcher = runner_of(failure(kind))
    with pytest.raises(ScriptError):
        runner.time()
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
    runner, _ = runner_of(traced_run(op, update), failure(FailureKind.TIME_LIMIT, "60 s"))
    runner.record()
    with pytest.raises(ScriptError) as caught:
        runner.time()
    hint = str(caught.value.hint)
    assert ("emulates fp16, far slower than fp32: let the script use fp32" in hint) is is_told
    assert "raise --time-limit" in hint


def test_script_that_fails_either_way_is_told_of_the_first_failure() -> None:
    answers = (failure(message="the first"), failure(message="the second"))
    with pytest.raises(ScriptError, match="the first") as caught:
        runner_of(*answers)[0].time()
    assert caught.value.output == "what the script printed"


@pytest.mark.parametrize("kind", list(FailureKind))
def test_failed_trace_is_an_error(kind: FailureKind) -> None:
    runner, _ = runner_of(failure(kind))
    with pytest.raises(BreakevenError, match=r"train\.py"):
        runner.record()


@pytest.mark.parametrize("kind", list(FailureKind))
def test_size_at_which_the_script_fails_is_no_error(kind: FailureKind) -> None:
    runner, _ = runner_of(failure(kind), failure(kind))
    assert runner.time_at(DOUBLED, budget_s=0.4) is None
    assert runner.time_on_gpu() is None


def test_own_gpu_is_left_to_the_script_and_not_fake() -> None:
    runner, launcher = runner_of(failure(), plain_run(), plain_run())
    runner.time()
    assert runner.time_on_gpu() is not None
    assert (launcher.requests[2].on_gpu, launcher.requests[2].has_cuda) == (True, False)


def test_a_run_that_was_disturbed_is_not_repeated_since_it_waited_itself() -> None:
    slow = replace(plain_run(), measurement=DISTURBED)
    runner, launcher = runner_of(slow)
    assert runner.time() is slow
    assert len(launcher.requests) == 1


def test_progress_hears_stages_and_steps() -> None:
    log = ProgressLog()
    launcher = ScriptedLauncher([traced_run(), plain_run()], num_steps=[1, 7])
    runner = Runner(launcher, SCRIPT, 60.0, log)
    runner.record(DOUBLED, " at batch size 64")
    runner.time()
    assert log.stages == [
        "recording a step on a fake GPU at batch size 64",
        "measuring the step on this CPU",
    ]
    assert log.details == ["step 1", "step 7"] * 2


def test_a_run_is_expected_to_take_as_long_as_the_one_before() -> None:
    log = ProgressLog()
    runner = Runner(ScriptedLauncher((traced_run(), plain_run())), SCRIPT, 60.0, log)
    runner.record()
    runner.time()
    # Nothing is known before the first; the scripted one took no time, but its budget counts.
    assert log.expected_s[0] is None
    assert log.expected_s[1] == pytest.approx(1.0, abs=0.5)
