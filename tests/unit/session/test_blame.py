"""Whose failure it is, from what the script does by itself and where CUDA is the CPU."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, ProbeRun, RunFailure, RunRequest
from breakeven.errors import BreakevenError, ScriptError
from breakeven.session import find_cause
from breakeven.trace import FileWrites, Location, WriteProtection
from factories.runs import SCRIPT, ScriptedLauncher, failure

REQUEST = RunRequest(target=SCRIPT, is_traced=True, time_limit_s=60.0)
WELL = ProbeRun(num_steps=2)
LINE = Location(file="/home/me/train.py", line=7)
FAILED = replace(failure(message="boom at 0x7f12"), location=LINE, source="x = y.to(device)")
REFUSED = RunFailure(kind=FailureKind.EXCEPTION, exception="AssertionError", message="no GPU")
LATE = RunFailure(kind=FailureKind.TIME_LIMIT, message="60 s", location=LINE)
NO_STEP = RunFailure(kind=FailureKind.NO_STEP, message="")


def cause(
    failed: RunFailure, *probes: ProbeRun | RunFailure, request: RunRequest = REQUEST
) -> tuple[BreakevenError, ScriptedLauncher]:
    launcher, told = ScriptedLauncher((), probes=probes), list[str]()
    error = find_cause(launcher, request, failed, "what it printed", told.append)
    assert len(told) == len(launcher.probed)
    return error, launcher


@pytest.mark.parametrize(
    ("failed", "alone"),
    [
        (FAILED, replace(FAILED, message="boom at 0x7f99")),
        (NO_STEP, replace(NO_STEP, num_steps=1)),
        (LATE, replace(LATE, location=None)),
        (replace(NO_STEP, kind=FailureKind.EXIT, message="2"),) * 2,
    ],
)
def test_script_that_fails_alike_by_itself_is_told_so(
    failed: RunFailure, alone: RunFailure
) -> None:
    error, launcher = cause(failed, alone)
    assert isinstance(error, ScriptError)
    assert error.output == "what it printed in probe 1"
    if failed.kind in (FailureKind.EXCEPTION, FailureKind.EXIT):
        assert "fails so by itself, without breakeven: python train.py --lr 0.1" in str(error.hint)
    (probe,) = launcher.probed
    assert probe.num_probe_steps == failed.num_steps + 2
    # As the user runs it: with the GPU that there is, and with none that there is not.
    assert (probe.on_gpu, probe.has_cuda, probe.is_traced) == (True, False, False)


def test_an_exit_that_hides_another_exception_is_another_failure() -> None:
    ended = replace(NO_STEP, kind=FailureKind.EXIT, message="1", exception="SystemExit")
    printed = "Traceback:\nValueError: Sum of lengths 70000 is wrong\nSee HYDRA_FULL_ERROR"
    launcher = ScriptedLauncher((), probes=(ended, ended))
    launcher.outputs = ("lightning.MisconfigurationException: no gpu backend", printed)
    error = find_cause(launcher, REQUEST, ended, printed)
    assert isinstance(error, ScriptError)
    assert error.output == printed
    assert "by itself, on what this machine has, it ended instead" in str(error.hint)

    launcher = ScriptedLauncher((), probes=(ended,))
    launcher.outputs = (printed.replace("70000", "60000"),)
    assert "fails so by itself" in str(find_cause(launcher, REQUEST, ended, printed).hint)


@pytest.mark.parametrize(
    ("exception", "protection", "is_told"),
    [
        ("OSError", WriteProtection.OVERLAY, True),
        ("PermissionError", WriteProtection.REDIRECTED, True),
        ("OSError", WriteProtection.NONE, False),
        ("ValueError", WriteProtection.OVERLAY, False),
    ],
)
def test_failure_that_a_layer_may_cause_is_told_with_the_way_around_it(
    exception: str, protection: WriteProtection, is_told: bool
) -> None:
    failed = replace(FAILED, exception=exception)
    launcher = ScriptedLauncher((), probes=(failed,))
    launcher.writes = FileWrites(protection=protection)
    error = find_cause(launcher, REQUEST, failed, "what it printed")
    assert ("--keep-writes" in str(error.hint)) is is_told
    assert ("fails so by itself" in str(error.hint)) is not is_told


def test_failure_that_a_quiet_tracker_may_cause_is_told_with_the_way_around_it() -> None:
    launcher = ScriptedLauncher((), probes=(FAILED,))
    launcher.quiet_trackers = ("MLflow", "Comet")
    error = find_cause(launcher, REQUEST, FAILED, "what it printed")
    assert str(error.hint).startswith(
        "MLflow, Comet logged nothing; if it does not fail so without"
    )
    assert "--keep-trackers" in str(error.hint)


def test_failure_of_the_recording_alone_is_breakevens() -> None:
    ours = Location(file="breakeven/capture/redirect.py", line=9, function="to")
    failed = replace(FAILED, our_line=ours, traceback="Traceback (most recent call last):\n  ...")
    error, _ = cause(failed, WELL, WELL)
    assert not isinstance(error, ScriptError)
    assert error.message == (
        "breakeven failed while it recorded train.py, which runs by itself: RuntimeError: boom at "
        "0x7f12 at /home/me/train.py:7: `x = y.to(device)`, in breakeven/capture/redirect.py:9 "
        "(to)"
    )
    hint = str(error.hint)
    assert "not in the script" in hint
    assert "please report it" in hint
    assert "torch 2." in hint
    assert hint.endswith("Traceback (most recent call last):\n  ...")
    timed, _ = cause(failed, WELL, WELL, request=replace(REQUEST, is_traced=False))
    assert "while it timed train.py" in timed.message


def test_failure_without_an_exception_may_be_breakevens_too() -> None:
    error, _ = cause(NO_STEP, WELL, WELL)
    assert "recorded train.py, which runs by itself: it ended without a training step" in str(error)
    error, _ = cause(replace(NO_STEP, kind=FailureKind.KILLED, message="SIGSEGV"), WELL, WELL)
    assert error.message.endswith("it was ended by signal SIGSEGV")


def test_script_that_a_signal_ends_gets_as_far_by_itself() -> None:
    killed = RunFailure(kind=FailureKind.KILLED, message="SIGSEGV")
    error, launcher = cause(killed, killed)
    assert isinstance(error, ScriptError)
    # Nobody knows at which step it was.
    assert launcher.probed[0].num_probe_steps > 20


def test_script_that_limits_its_own_time_is_not_compared_with_a_faster_run() -> None:
    error, launcher = cause(RunFailure(kind=FailureKind.KILLED, message="SIGALRM"))
    assert isinstance(error, ScriptError)
    assert "limits its own time" in str(error.hint)
    assert launcher.probed == []


def test_script_that_needs_a_gpu_is_not_blamed_for_what_breakeven_does() -> None:
    error, launcher = cause(FAILED, REFUSED, WELL)
    assert not isinstance(error, ScriptError)
    assert "which by itself refuses to run here, but runs with its CUDA calls" in error.message
    assert [probe.has_cuda for probe in launcher.probed] == [False, True]
    assert [probe.on_gpu for probe in launcher.probed] == [True, False]


@pytest.mark.parametrize(
    ("alone", "known"),
    [(WELL, "it runs: python"), (REFUSED, "it raised AssertionError instead")],
)
def test_failure_where_there_is_a_gpu_is_told_as_that(
    alone: ProbeRun | RunFailure, known: str
) -> None:
    error, _ = cause(FAILED, alone, FAILED)
    assert isinstance(error, ScriptError)
    assert "RuntimeError: boom" in error.message
    assert "where torch.cuda.is_available() says yes" in str(error.hint)
    assert known in str(error.hint)
    assert error.output == "what it printed"


def test_script_that_fails_in_every_way_is_told_what_it_does_by_itself() -> None:
    error, _ = cause(FAILED, REFUSED, replace(FAILED, message="another"))
    assert isinstance(error, ScriptError)
    assert "AssertionError: no GPU" in error.message
    assert error.output == "what it printed in probe 1"


def test_time_limit_is_to_be_raised_where_breakeven_takes_the_time() -> None:
    error, launcher = cause(LATE, ProbeRun(num_steps=2))
    assert isinstance(error, ScriptError)
    assert "within 60 s while breakeven recorded it; stuck at /home/me/train.py:7" in str(error)
    assert "by itself it took 2 steps in " in error.message
    assert "raise --time-limit" in str(error.hint)
    assert len(launcher.probed) == 1
    # One that needs a GPU is slow with a pretended one.
    error, _ = cause(LATE, REFUSED, ProbeRun(num_steps=2))
    assert "within 60 s while breakeven recorded it" in error.message
    error, _ = cause(LATE, REFUSED, LATE)
    assert "AssertionError" not in error.message


def test_script_that_is_too_slow_when_timed_is_not_run_once_more_to_its_limit() -> None:
    error, launcher = cause(LATE, request=replace(REQUEST, is_traced=False))
    assert isinstance(error, ScriptError)
    assert "did not complete a training step within 60 s; stuck at" in error.message
    assert launcher.probed == []


@pytest.mark.parametrize("kind", [FailureKind.INTERNAL, FailureKind.OTHER_PROCESS])
def test_known_cause_is_not_looked_for(kind: FailureKind) -> None:
    _, launcher = cause(failure(kind))
    assert launcher.probed == []


def test_another_batch_size_is_not_probed() -> None:
    error, launcher = cause(FAILED, request=replace(REQUEST, loader_batch_size=8, new_batch_size=9))
    assert isinstance(error, ScriptError)
    assert launcher.probed == []


def test_run_that_did_not_fail_so_far_is_no_proof() -> None:
    # It ran out of time before it came to the line.
    error, _ = cause(replace(FAILED, num_steps=3), replace(LATE, num_steps=1), LATE)
    assert isinstance(error, ScriptError)
    assert "within 60 s" in error.message
    error, _ = cause(FAILED, replace(LATE, num_steps=1), LATE)
    assert "breakeven failed" in error.message
