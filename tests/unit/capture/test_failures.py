"""Why a run gave no answer: what is noted of it, and the words that the user gets."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.capture import (
    FailureKind,
    OwnProcesses,
    RunFailure,
    Target,
    TargetKind,
    failures,
)
from breakeven.capture.failures import (
    failure_in_frame,
    failure_of,
    script_error,
    with_other_framework,
)
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import FileWrites, Location, WriteProtection
from factories.runs import FUNCTION, SCRIPT, failure

LINE = Location(file="/elsewhere/model.py", line=17, function="forward")
AT = " at /elsewhere/model.py:17: `x = net(y)`"


def raised(path: Path, text: str) -> BaseException:
    """Return what a script raises."""
    path.write_text(text)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        exec(compile(text, str(path), "exec"), {})
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "exception", "missing"),
    [
        ("x = 1\n1 / 0\n", 2, "ZeroDivisionError", ""),
        ("import nowhere.at_all\n", 1, "ModuleNotFoundError", "nowhere"),
        ("raise ModuleNotFoundError('get it')\n", 1, "ModuleNotFoundError", ""),
        # Words that are no Unicode can be sent.
        ("raise ValueError('\\udcff \\ud800')", 1, "ValueError", ""),
    ],
)
def test_failure_of_a_script_names_its_line_and_none_of_ours(
    text: str, line: int, exception: str, missing: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    failure = failure_of(raised(path, text), num_steps=3)
    assert failure.location is not None
    assert (failure.location.file, failure.location.line) == (str(path), line)
    assert (failure.exception, failure.missing) == (exception, missing)
    assert (failure.our_line, failure.num_steps) == (None, 3)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=RunFailure) == failure


def test_breakevens_line_is_that_which_the_script_called(tmp_path: Path) -> None:
    text = "from breakeven.units import format_duration\nformat_duration(None)\n"
    failure = failure_of(raised(tmp_path / "train.py", text), num_steps=3)
    assert failure.location is not None
    assert failure.location.line == 2
    assert failure.our_line is not None
    assert failure.our_line.file == "breakeven/units.py"
    assert "TypeError" in failure.traceback


def test_script_that_is_ended_is_told_with_its_line(tmp_path: Path) -> None:
    text = "def evaluate():\n    for _ in [0]:\n        stop()\n\n\nlosses = evaluate()\n"
    path = tmp_path / "train.py"
    path.write_text(text)
    failures: list[RunFailure] = []

    def stop() -> None:
        failures.append(failure_in_frame(FailureKind.TIME_LIMIT, "1 s", sys._getframe(1), 0))

    # In a thread, where no line of this file calls the script.
    script = threading.Thread(target=exec, args=(compile(text, str(path), "exec"), {"stop": stop}))
    script.start()
    script.join()
    (failure,) = failures
    assert failure.location is not None
    assert (failure.location.line, failure.source) == (3, "stop()")


def test_traceback_keeps_its_lines_beside_a_message_without_end(tmp_path: Path) -> None:
    text = "def fail():\n    raise RuntimeError('backend not there ' * 1_000)\n\nfail()\n"
    told = failure_of(raised(tmp_path / "train.py", text), num_steps=0).traceback
    assert "in fail" in told
    assert told.rstrip().endswith("...")
    assert len(told) < 8_000


@pytest.fixture
def any_depth() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.timing
@pytest.mark.usefixtures("any_depth")
def test_recursion_without_end_is_told_by_its_end(tmp_path: Path) -> None:
    text = "def fall(depth):\n    return 1 // depth + fall(depth - 1)\n\nfall(100_000)\n"
    error = raised(tmp_path / "train.py", text)
    begun_s = perf_counter()
    failure = failure_of(error, num_steps=0)
    told_s = perf_counter()
    traceback.format_exception(error)
    assert told_s - begun_s < perf_counter() - told_s
    assert failure.location is not None
    assert failure.location.line == 2
    assert "fall(depth - 1)" in failure.traceback


@pytest.mark.usefixtures("any_depth")
def test_where_a_deep_stack_stands_is_a_short_message() -> None:
    def stand(depth: int) -> RunFailure:
        if depth:
            return stand(depth - 1)
        return failure_in_frame(FailureKind.TIME_LIMIT, "1 s", sys._getframe(), 0)

    failure = stand(20_000)
    assert failure.location is not None
    assert failure.location.function == "stand"
    assert len(msgspec.json.encode(failure)) < 1_000


@pytest.mark.parametrize("raises", ["raise Odd", "raise SystemExit(Odd())"])
def test_what_cannot_be_shown_is_told_by_its_class(tmp_path: Path, raises: str) -> None:
    text = "class Odd(Exception):\n    def __str__(self):\n        raise KeyError\n" + raises
    failure = failure_of(raised(tmp_path / "train.py", text), 0)
    assert failure.message == "<Odd without words>"
    assert failure.location is not None
    assert failure.location.line == 4


def explain(
    kind: FailureKind = FailureKind.EXCEPTION,
    message: str = "",
    *,
    location: Location | None = LINE,
    target: Target = SCRIPT,
    writes: FileWrites | None = None,
    **facts: object,
) -> BreakevenError:
    """Return the error of a failure at a line of the script."""
    source = "x = net(y)" if location else ""
    failed = RunFailure(kind=kind, message=message, location=location, source=source)
    return script_error(replace(failed, **facts), target, "the last words", writes=writes)


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
            "check that the script runs without breakeven",
        ),
        (
            FailureKind.EXIT, "2", 1,
            f"train.py ended with status 2 after 1 training step{AT}",
            "own arguments after `--`",
        ),
        (
            FailureKind.EXIT, "no data", 0,
            f"train.py ended with the words `no data` before its first training step{AT}",
            "own arguments after `--`",
        ),
        (
            FailureKind.NO_STEP, "", 0,
            "train.py ended without a training step: it called no optimizer.step(), and "
            "backward() no more than once",
            "path.py:function",
        ),
        (
            FailureKind.NO_STEP, "", 1,
            "train.py ended after 1 training step; a step is timed from one update to the next",
            "more steps",
        ),
        (
            FailureKind.TIME_LIMIT, "60 s", 0,
            f"train.py did not complete a training step within 60 s; stuck{AT}",
            "--time-limit",
        ),
        (
            FailureKind.TIME_LIMIT, "60 s", 1,
            f"train.py did not complete a second training step within 60 s; stuck{AT}",
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
            "train.py closed file descriptors that it did not open, including breakeven's",
            "close only files that the script opened",
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


@pytest.mark.parametrize("kind", list(FailureKind))
def test_failure_without_a_known_line_names_none(kind: FailureKind) -> None:
    error = explain(kind, "text", exception="ValueError", location=None)
    assert " at " not in error.message
    assert "train.py" in error.message
    assert error.hint
    if isinstance(error, ScriptError):
        assert (error.file, error.line) == (None, None)


@pytest.mark.parametrize(
    ("trace", "said"),
    [("Traceback (most recent call last):\n  ...\nKeyError: 'aten'\n", "KeyError: 'aten'"),
     (" \n", "no message")],
)  # fmt: skip
def test_failure_of_our_own_is_no_fault_of_the_script(trace: str, said: str) -> None:
    error = explain(FailureKind.INTERNAL, trace)
    assert not isinstance(error, ScriptError)
    assert error.message == f"breakeven failed while it watched train.py: {said}"
    assert "please report it" in (error.hint or "")
    assert trace in (error.hint or "")


@pytest.mark.parametrize(
    ("exception", "text", "missing", "target", "hint"),
    [
        ("ModuleNotFoundError", "No module named 'timm'", "timm", SCRIPT, "package of timm"),
        ("FileNotFoundError", "[Errno 2]", "/data/train.npz", SCRIPT, "needs /data/train.npz: "),
        ("FileExistsError", "[Errno 17]", "", SCRIPT, "an earlier run may have made it"),
        ("EOFError", "Ran out of input", "", SCRIPT, "script runs without breakeven"),
        ("AttributeError", "no VALUE", "/a/json.py", SCRIPT, "rename /a/json.py: another module"),
        ("MemoryError", "", "", SCRIPT, "does not fit this machine's memory"),
        ("OutOfMemoryError", "CUDA out of memory. Tried", "", SCRIPT, "does not fit"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", "", SCRIPT, "does not fit"),
        ("OSError", "[Errno 12] Cannot allocate memory", "", SCRIPT, "does not fit"),
        ("AttributeError", "train.py has no function 'step'", "", FUNCTION, "name a function of"),
        ("KeyError", "'LOCAL_RANK'", "", SCRIPT, "torchrun starts the script"),
        ("ValueError", "environment variable WORLD_SIZE expected, but not set", "", SCRIPT,
         "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1"),
        ("KeyError", "'RANKS'", "", SCRIPT, "script runs without breakeven"),
        ("TypeError", "step() missing 1 required positional argument: 'x'", "", FUNCTION,
         "without arguments"),
        # In a script the same exceptions are the script's own business.
        ("AttributeError", "no attribute 'x'", "", SCRIPT, "breakeven: python train.py"),
        ("TypeError", "f() missing 1 required positional argument: 'x'", "", SCRIPT, "script runs"),
    ],
)  # fmt: skip
def test_known_exceptions_have_a_hint_of_their_own(
    exception: str, text: str, missing: str, target: Target, hint: str
) -> None:
    error = explain(message=text, exception=exception, missing=missing, target=target)
    assert hint in (error.hint or "")
    what = f"{exception}: {text}" if text else exception
    assert error.message == f"{target.label} raised {what}{AT} before its first training step"


def test_files_are_looked_for_and_lines_shown_relative_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Location(file=str(tmp_path / "lib" / "net.py"), line=3)
    error = explain(exception="FileNotFoundError", missing="data/a.csv", location=here)
    assert f"data/a.csv (looked for in {tmp_path})" in (error.hint or "")
    assert " at lib/net.py:3: `x = net(y)` before" in error.message


@pytest.mark.parametrize(
    ("exception", "missing"), [("ModuleNotFoundError", "timm"), ("FileNotFoundError", "data.csv")]
)
def test_folder_that_is_gone_hides_no_failure(
    exception: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    error = explain(message="gone", exception=exception, missing=missing)
    assert f"raised {exception}: gone{AT}" in error.message
    assert missing in (error.hint or "")


def test_hint_is_a_command_that_runs_the_target() -> None:
    package = Target(kind=TargetKind.MODULE, raw_path=b"lab.train", label="lab.train")
    for target, command in (
        (SCRIPT, "python train.py --lr 0.1"),
        (package, "python -m lab.train"),
        (FUNCTION, 'python -c "from train import step; step()"'),
    ):
        hint = explain(exception="ValueError", target=target).hint or ""
        assert hint.startswith(f"check that the script runs without breakeven: {command};")


PROCESSES = OwnProcesses(
    num_started=2, location=LINE, source="worker.start()", function="train.py:train"
)
STARTED = " at /elsewhere/model.py:17: `worker.start()`, and breakeven cannot time those"


@pytest.mark.parametrize(
    ("kind", "processes", "message", "hints"),
    [
        (
            FailureKind.TIME_LIMIT, PROCESSES,
            "did not complete a training step within 60 s; it started 2 other processes" + STARTED,
            [
                "if these train, train in the script's own process, or name the training function: "
                "train.py:train", "else raise --time-limit",
            ],
        ),
        (
            FailureKind.NO_STEP, replace(PROCESSES, num_started=1, function=""),
            f"; it started another process{STARTED}", ["path.py:function"],
        ),
    ],
)  # fmt: skip
def test_training_in_other_processes_is_no_matter_of_time(
    kind: FailureKind, processes: OwnProcesses, message: str, hints: list[str]
) -> None:
    error = explain(kind, "60 s", location=None, processes=processes)
    assert error.message.endswith(message)
    assert all(hint in (error.hint or "") for hint in hints)


def test_absent_module_that_is_here_is_not_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    error = explain(exception="ModuleNotFoundError", missing="models.resnet")
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
    error = explain(exception=exception, writes=FileWrites(protection=protection))
    assert ("--keep-writes" in str(error.hint)) is is_told
    assert ("check that the script runs" in str(error.hint)) is not is_told


def test_failure_in_a_line_of_breakeven_names_it_with_what_to_report() -> None:
    ours = Location(file="breakeven/capture/record/x.py", line=3, function="note")
    failed = replace(failure(message="boom"), our_line=ours, traceback="Traceback: boom")
    hint = str(script_error(failed, SCRIPT, "").hint)
    assert "if it runs, this is a bug in breakeven, at breakeven/capture/record/x.py:3" in hint
    assert hint.endswith("Traceback: boom")


@pytest.mark.parametrize("source", ["n = input('epochs? ')", "key = getpass.getpass()"])
def test_a_script_that_asks_its_terminal_is_named_as_one(source: str) -> None:
    message = "EOF when reading a line" if "input" in source else ""
    error = explain(message=message, exception="EOFError", source=source)
    assert error.message == (
        f"train.py asks for input at /elsewhere/model.py:17: `{source}`, and nobody answers while "
        "breakeven runs it"
    )
    assert "after `--`" in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "framework", "line"),
    [
        ("import tensorflow as tf\n", "TensorFlow", 1),
        ("import os\nfrom tensorflow import keras\n", "TensorFlow", 2),
        ("def train():\n    import keras.layers\n", "Keras", 2),
        # Data from TensorFlow, training in JAX.
        ("import tensorflow\nimport jax.numpy as jnp\n", "JAX", 2),
        ("from sklearn.svm import SVC\n", "scikit-learn", 1),
        # Without torch, nothing of it is known.
        ("import numpy\n", "", 0),
        # Whatever needs torch may train with it, whatever else the script imports.
        ("import torch\nimport tensorflow\n", "", 0),
        ("import sklearn\nfrom torch import nn\n", "", 0),
        ("import sklearn\nimport accelerate\n", "", 0),
        ("import jax\nimport transformers\n", "", 0),
        ("from .keras import layers\n", "", 0),
    ],
)
def test_a_script_in_another_framework_is_named_by_its_import(
    text: str, framework: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    # The tests are files of the user too, and import torch.
    monkeypatch.setattr(failures, "is_user_file", lambda file: file == str(path))
    before = RunFailure(
        message="", kind=FailureKind.EXCEPTION, location=Location(file=str(path), line=1)
    )
    found = with_other_framework(before)
    if not framework:
        assert found == before
        return
    assert (found.kind, found.message) == (FailureKind.OTHER_FRAMEWORK, framework)
    assert found.location is not None
    assert (found.location.file, found.location.line) == (str(path), line)
    error = script_error(found, SCRIPT, "")
    assert error.message == (
        f"breakeven answers for PyTorch; train.py trains in {framework} ({path}:{line})"
    )


def test_a_script_that_took_a_step_or_started_a_process_trains_with_torch(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sklearn\n")
    location = Location(file=str(path), line=1)
    stepped = RunFailure(message="", kind=FailureKind.NO_STEP, location=location, num_steps=1)
    assert with_other_framework(stepped) is stepped
    processes = OwnProcesses(num_started=1, location=location)
    starts = RunFailure(
        message="", kind=FailureKind.NO_STEP, location=location, processes=processes
    )
    assert with_other_framework(starts) is starts


@pytest.mark.parametrize(
    ("missing", "kind"),
    [
        ("timm", FailureKind.EXCEPTION),
        ("tensorflow", FailureKind.OTHER_FRAMEWORK),
        ("tensorflow_datasets", FailureKind.OTHER_FRAMEWORK),
    ],
)
def test_a_missing_package_may_be_what_imports_torch(
    missing: str, kind: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import sklearn\nimport {missing}\nfrom model import Net\n")
    monkeypatch.setattr(failures, "is_user_file", lambda file: file == str(path))
    failed = RunFailure(
        message=f"No module named '{missing}'",
        kind=FailureKind.EXCEPTION,
        exception="ModuleNotFoundError",
        missing=missing,
        location=Location(file=str(path), line=2),
    )
    assert with_other_framework(failed).kind is kind
