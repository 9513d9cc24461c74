from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, OwnProcesses, RunFailure, Target, TargetKind
from breakeven.capture.failures import script_error
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import FileWrites, Location, WriteProtection
from factories.runs import FUNCTION, SCRIPT, failure

LINE = Location(file="/elsewhere/model.py", line=17, function="forward")


def explain(
    kind: FailureKind,
    message: str = "",
    *,
    exception: str = "",
    num_steps: int = 0,
    missing: str = "",
    location: Location | None = LINE,
    target: Target = SCRIPT,
) -> BreakevenError:
    failure = RunFailure(
        kind=kind,
        message=message,
        exception=exception,
        location=location,
        source="x = net(y)" if location else "",
        num_steps=num_steps,
        missing=missing,
    )
    return script_error(failure, target, "the last words")


AT = " at /elsewhere/model.py:17: `x = net(y)`"


@pytest.mark.parametrize(
    ("kind", "text", "num_steps", "message", "hint"),
    [
        (
            FailureKind.EXCEPTION, "boom", 0,
            f"train.py raised ValueError: boom{AT} before its first training step",
            "python train.py --lr 0.1",
        ),
        (
            FailureKind.EXCEPTION, "", 3,
            f"train.py raised ValueError{AT} after 3 training steps",
            "must run by itself first",
        ),
        (
            FailureKind.EXIT, "2", 1,
            f"train.py ended with status 2 after 1 training step{AT}",
            "arguments that it needs after `--`",
        ),
        (
            FailureKind.NO_STEP, "", 0,
            "train.py ended without a training step: no optimizer was stepped, and not more than "
            "one backward pass made",
            "path.py:function",
        ),
        (
            FailureKind.NO_STEP, "", 1,
            "train.py ended after 1 training step; a step is timed from one update to the next",
            "more steps",
        ),
        (
            FailureKind.TIME_LIMIT, "60 s", 0,
            "train.py did not complete a training step within 60 s; stuck at "
            "/elsewhere/model.py:17: `x = net(y)`",
            "--time-limit",
        ),
        (
            FailureKind.TIME_LIMIT, "60 s", 1,
            "train.py did not complete a second training step within 60 s; stuck at "
            "/elsewhere/model.py:17: `x = net(y)`",
            "--time-limit",
        ),
        (
            FailureKind.KILLED, "SIGKILL", 0,
            "train.py was ended by signal SIGKILL",
            "smaller batch",
        ),
        (
            FailureKind.KILLED, "SIGSEGV", 2,
            "train.py was ended by signal SIGSEGV",
            "run it with python directly",
        ),
        (
            FailureKind.PIPE_CLOSED, "74", 0,
            "train.py closed file descriptors of others, breakeven's among them",
            "close its own files alone",
        ),
    ],
)  # fmt: skip
def test_failure_is_told_with_its_line_and_what_to_do(
    kind: FailureKind, text: str, num_steps: int, message: str, hint: str
) -> None:
    error = explain(kind, text, exception="ValueError", num_steps=num_steps)
    assert isinstance(error, ScriptError)
    assert error.message == message
    assert hint in (error.hint or "")
    assert (error.file, error.line) == ("/elsewhere/model.py", 17)
    assert error.output == "the last words"
    assert error.exit_code == 3


def test_limit_within_a_function_is_told_with_the_line_that_called_it() -> None:
    failure = RunFailure(
        kind=FailureKind.TIME_LIMIT,
        message="60 s",
        location=LINE,
        source="x = net(y)",
        caller=Location(file="/elsewhere/train.py", line=70),
        caller_source="losses = evaluate()",
    )
    assert script_error(failure, SCRIPT, "").message.endswith(
        f"stuck{AT}, called from /elsewhere/train.py:70: `losses = evaluate()`"
    )


@pytest.mark.parametrize("kind", list(FailureKind))
def test_failure_without_a_known_line_names_none(kind: FailureKind) -> None:
    error = explain(kind, "text", exception="ValueError", location=None)
    assert " at " not in error.message
    assert "train.py" in error.message
    assert error.hint
    if isinstance(error, ScriptError):
        assert (error.file, error.line) == (None, None)


def test_failure_of_our_own_is_no_fault_of_the_script() -> None:
    trace = "Traceback (most recent call last):\n  ...\nKeyError: 'aten'\n"
    error = explain(FailureKind.INTERNAL, trace)
    assert not isinstance(error, ScriptError)
    assert error.message == "breakeven failed while it watched train.py: KeyError: 'aten'"
    assert "please report it" in (error.hint or "")
    assert trace in (error.hint or "")


def test_failure_of_our_own_may_say_nothing() -> None:
    assert explain(FailureKind.INTERNAL, " \n").message.endswith("train.py: no message")


@pytest.mark.parametrize(
    ("exception", "text", "missing", "target", "hint"),
    [
        ("ModuleNotFoundError", "No module named 'timm'", "timm", SCRIPT, "has timm for this"),
        ("FileNotFoundError", "[Errno 2]", "/data/train.npz", SCRIPT, "needs /data/train.npz: run"),
        ("FileExistsError", "[Errno 17]", "", SCRIPT, "an earlier run may have made it"),
        ("EOFError", "EOF when reading a line", "", SCRIPT, "standard input is empty here"),
        ("AttributeError", "no VALUE", "/a/json.py", SCRIPT, "rename /a/json.py: another module"),
        ("MemoryError", "", "", SCRIPT, "does not fit this machine's memory"),
        ("OutOfMemoryError", "CUDA out of memory. Tried", "", SCRIPT, "does not fit"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", "", SCRIPT, "does not fit"),
        ("OSError", "[Errno 12] Cannot allocate memory", "", SCRIPT, "does not fit"),
        ("AttributeError", "train.py has no function 'step'", "", FUNCTION, "name a function of"),
        ("KeyError", "'LOCAL_RANK'", "", SCRIPT, "torchrun starts the script"),
        ("ValueError", "environment variable WORLD_SIZE expected, but not set", "", SCRIPT,
         "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1"),
        ("KeyError", "'RANKS'", "", SCRIPT, "run by itself first"),
        ("TypeError", "step() missing 1 required positional argument: 'x'", "", FUNCTION,
         "without arguments"),
        # In a script the same exceptions are the script's own business.
        ("AttributeError", "no attribute 'x'", "", SCRIPT, "run by itself first: python train.py"),
        ("TypeError", "f() missing 1 required positional argument: 'x'", "", SCRIPT, "by itself"),
    ],
)  # fmt: skip
def test_known_exceptions_have_a_hint_of_their_own(
    exception: str, text: str, missing: str, target: Target, hint: str
) -> None:
    error = explain(
        FailureKind.EXCEPTION, text, exception=exception, missing=missing, target=target
    )
    assert hint in (error.hint or "")
    what = f"{exception}: {text}" if text else exception
    assert error.message == f"{target.label} raised {what}{AT} before its first training step"


def test_relative_file_is_said_to_be_looked_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = explain(
        FailureKind.EXCEPTION, "gone", exception="FileNotFoundError", missing="data/a.csv"
    )
    assert f"data/a.csv (looked for in {tmp_path})" in (error.hint or "")


def test_line_of_a_file_below_here_is_shown_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Location(file=str(tmp_path / "lib" / "net.py"), line=3)
    error = explain(FailureKind.EXCEPTION, "boom", exception="ValueError", location=here)
    assert " at lib/net.py:3: `x = net(y)` before" in error.message


def test_folder_that_is_gone_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for missing in ("data.csv", "timm"):
        is_module = missing == "timm"
        exception = "ModuleNotFoundError" if is_module else "FileNotFoundError"
        error = explain(FailureKind.EXCEPTION, "gone", exception=exception, missing=missing)
        assert f"raised {exception}: gone{AT}" in error.message
        assert missing in (error.hint or "")


def test_hint_is_a_command_that_runs_the_target() -> None:
    def hint(target: Target) -> str:
        return explain(FailureKind.EXCEPTION, exception="ValueError", target=target).hint or ""

    said = "the script must run by itself first:"
    package = Target(kind=TargetKind.MODULE, raw_path=b"lab.train", label="lab.train")
    assert hint(SCRIPT).startswith(f"{said} python train.py --lr 0.1;")
    assert hint(package).startswith(f"{said} python -m lab.train;")
    assert hint(FUNCTION).startswith(f'{said} python -c "from train import step; step()";')


PROCESSES = OwnProcesses(
    num_started=2, location=LINE, source="worker.start()", function="train.py:train"
)


def processes_error(kind: FailureKind, processes: OwnProcesses) -> BreakevenError:
    failure = RunFailure(kind=kind, message="60 s", processes=processes)
    return script_error(failure, SCRIPT, "")


def test_training_in_other_processes_is_no_matter_of_time() -> None:
    started = " at /elsewhere/model.py:17: `worker.start()`, whose steps breakeven does not time"
    seen = processes_error(FailureKind.OTHER_PROCESS, replace(PROCESSES, has_steps=True))
    assert seen.message == (
        f"train.py takes no training step in its own process; it started 2 other processes{started}"
    )
    assert str(seen.hint).endswith("or name what trains: train.py:train")
    late = processes_error(FailureKind.TIME_LIMIT, PROCESSES)
    assert late.message == (
        "train.py did not complete a training step within 60 s; it started 2 other processes"
        + started
    )
    assert str(late.hint).startswith("if these train, let the script train in its own process")
    assert "else raise --time-limit" in str(late.hint)
    unnamed = replace(PROCESSES, num_started=1, function="")
    ended = processes_error(FailureKind.NO_STEP, unnamed)
    assert "it started another process at" in ended.message
    assert "path.py:function" in str(ended.hint)


def test_absent_module_that_is_here_is_not_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    error = explain(FailureKind.EXCEPTION, exception="ModuleNotFoundError", missing="models.resnet")
    assert "install" not in str(error.hint)
    assert f"PYTHONPATH={tmp_path}" in str(error.hint)


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
    failed = replace(failure(message="boom"), exception=exception)
    error = script_error(failed, SCRIPT, "", writes=FileWrites(protection=protection))
    assert ("--keep-writes" in str(error.hint)) is is_told
    assert ("must run by itself" in str(error.hint)) is not is_told


def test_failure_in_a_line_of_breakeven_names_it_with_what_to_report() -> None:
    ours = Location(file="breakeven/capture/record/x.py", line=3, function="note")
    failed = replace(failure(message="boom"), our_line=ours, traceback="Traceback: boom")
    hint = str(script_error(failed, SCRIPT, "").hint)
    assert "if it does, this is a bug in breakeven, at breakeven/capture/record/x.py:3" in hint
    assert hint.endswith("Traceback: boom")


def test_last_words_of_a_script_are_no_status() -> None:
    error = explain(FailureKind.EXIT, "no data found")
    assert error.message.startswith("train.py ended with the words `no data found` before")
