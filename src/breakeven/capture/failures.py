"""Failures of a run: the process's record of one, and its error message for the user."""

from __future__ import annotations

import linecache
import platform
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from types import FrameType, ModuleType
from typing import assert_never

from breakeven.capture.location import (
    as_text,
    is_our_file,
    is_user_file,
    locate,
    location_of,
    text_of,
)
from breakeven.capture.messages import FailureKind, RunFailure
from breakeven.capture.target import Target, TargetKind
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import FileWrites, Location, WriteProtection, is_notebook, line_text

_FOLDER = Path(__file__).resolve().parents[2]
# The end of a traceback matters most, and the start of a message: torch's may list all backends.
_MAX_TRACEBACK = 6_000
# Formatting a recursion a million calls deep would take minutes: keep its last frames.
_MAX_FRAMES = 100
_MAX_MESSAGE = 1_000

# Variables that torchrun sets for the first process.
_TORCHRUN = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500"
_SHELL = r"get_ipython|\.run_\w+_magic|\.magic\("
_TORCHRUN_NAMES = r"\b((LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT))\b"
_NO_SHARDS = (
    "breakeven predicts several GPUs with the whole model on each: wrap it in "
    "DistributedDataParallel, or train on one GPU, to compare"
)
# Packages that train without torch. The first one that a script imports names its framework.
_OTHER_FRAMEWORKS = {
    "jax": "JAX",
    "flax": "JAX",
    "optax": "JAX",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "mlx": "MLX",
    "sklearn": "scikit-learn",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
}
_IMPORT = re.compile(r"\s*(?:import|from)\s+(\w+)")
_TORCH = re.compile(r"torch\b(?!.*\bextra\b)")
_NO_INPUT = "EOF when reading a line"
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")


def failure_of(error: BaseException, num_steps: int) -> RunFailure:
    """Return the failure for an exception, with the user's line that led to it.

    Args:
        error: Exception that the script raised.
        num_steps: Number of completed steps.
    """
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    passed = [each for each in frames if is_user_file(each[0])]
    location = location_of(*passed[-1]) if passed else None
    said: object = error
    kind = FailureKind.EXCEPTION
    if isinstance(error, SyntaxError):
        said = error.msg
        if error.filename and error.lineno:
            location = location_of(error.filename, error.lineno)
    elif isinstance(error, SystemExit):
        said, kind = error.code if error.code is not None else 0, FailureKind.EXIT
    try:
        message = as_text(str(said))
    except Exception:  # raised by the user's class
        message = f"<{type(said).__name__} without words>"
    our_line = None
    # A syntax error belongs to the script, although our line compiles it.
    if frames and not isinstance(error, SyntaxError) and is_our_file(frames[-1][0]):
        file, line, name = frames[-1]
        our_line = location_of(str(Path(file).resolve().relative_to(_FOLDER)), line, name)
    end = "".join(traceback.format_exception_only(error))
    lines = "".join(traceback.format_exception(error, limit=-_MAX_FRAMES)).removesuffix(end)
    if len(end) > _MAX_MESSAGE:
        end = f"{end[:_MAX_MESSAGE]}...\n"
    return RunFailure(
        kind=kind,
        message=message,
        exception=type(error).__name__,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
        missing=as_text(_missing_thing(error)),
        our_line=our_line,
        traceback=as_text(lines[-_MAX_TRACEBACK:] + end),
    )


def failure_in_frame(
    kind: FailureKind, message: str, frame: FrameType | None, num_steps: int
) -> RunFailure:
    """Return the failure of a run that was stopped.

    Args:
        kind: Reason.
        message: The missing result.
        frame: Frame in which the script was running.
        num_steps: Number of completed steps.
    """
    location = locate(frame)
    return RunFailure(
        kind=kind,
        message=message,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
    )


def with_other_framework(failure: RunFailure) -> RunFailure:
    """Return the failure, or that the script trains in another framework than torch.

    That is so if the script took no step, imports such a framework, and imports nothing that needs
    torch. Call this in the process of the run: it reads all files of the user that were imported.

    Args:
        failure: The failure of the run.
    """
    if failure.num_steps or failure.processes is not None:
        return failure
    others = tuple(_OTHER_FRAMEWORKS)
    if failure.exception == "ModuleNotFoundError" and not failure.missing.startswith(others):
        return failure  # the script may import torch after the missing package
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    files |= {*filter(is_notebook, linecache.cache)}  # the text of this run's notebook
    if failure.location is not None:  # a module that could not be imported is not in sys.modules
        files.add(failure.location.file)
    imports: dict[str, Location] = {}
    for file in filter(is_user_file, sorted(files - {""})):
        for number, line in enumerate(text_of(file).splitlines(), 1):
            if found := _IMPORT.match(line):
                imports.setdefault(found[1], location_of(file, number))
    framework = next((name for name in others if name in imports), None)
    if framework is None or any(map(_needs_torch, imports)):
        return failure
    kind, name = FailureKind.OTHER_FRAMEWORK, _OTHER_FRAMEWORKS[framework]
    return RunFailure(kind=kind, message=name, location=imports[framework])


def _needs_torch(package: str) -> bool:
    """Return whether a package is torch, or cannot be installed without it."""
    names = packages_distributions().get(package, ())
    needs = [need for name in names for need in requires(name) or ()]
    # transformers trains with torch alone, and leaves it to the user to install it.
    return package in ("torch", "transformers") or any(map(_TORCH.match, needs))


def internal_failure() -> RunFailure:
    """Return a failure for the current exception, which is breakeven's own."""
    return RunFailure(
        kind=FailureKind.INTERNAL, message=as_text(traceback.format_exc()), exception="breakeven"
    )


def source_line(location: Location | None) -> str:
    """Return the text of a line; empty without a location."""
    return linecache.getline(location.file, location.line).strip() if location else ""


def _missing_thing(error: BaseException) -> str:
    """Return the absent module or file, or the file hidden by a module of the same name."""
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, FileNotFoundError):
        return str(error.filename or "")
    module: object = None
    if isinstance(error, AttributeError):
        module = error.obj
    elif isinstance(error, ImportError):
        module = sys.modules.get(error.name or "")
    if isinstance(module, ModuleType):
        # The script may have changed its path, and its modules, to anything.
        with suppress(Exception):
            beside = Path(sys.path[0], f"{module.__name__}.py")
            if beside.is_file() and not beside.samefile(str(module.__file__)):
                return str(beside)
    return ""


def script_error(
    failure: RunFailure,
    target: Target,
    output: str,
    *,
    writes: FileWrites | None = None,
    slow_because: str = "",
) -> BreakevenError:
    """Return the error that explains the end of the run to the user.

    Args:
        failure: Report of the run's process.
        target: The target of the run.
        output: The end of the script's output.
        writes: Destination of the script's files; None if unknown.
        slow_because: Possible reason for a step over the limit, and a remedy; empty if unknown.
    """
    label, location, num_steps = target.label, failure.location, failure.num_steps
    at = f" at {_place(location, failure.source)}" if location else ""
    after = f"after {num_steps} training step{'' if num_steps == 1 else 's'}"
    if num_steps == 0:
        after = "before its first training step"
    hint = "name a function that does one step: path.py:function"
    if target.is_notebook:
        hint = "check the cell of the step alone, in the notebook: %%breakeven"
    match failure.kind:
        case FailureKind.INTERNAL:
            *_, last = ("no message", *failure.message.strip().splitlines())
            return BreakevenError(
                f"breakeven failed while it watched {label}: {last}",
                hint=f"this is a bug in breakeven; please report it with:\n{failure.message}",
            )
        case FailureKind.EXCEPTION if _asks(failure):
            message = f"{label} asks for input{at}, and nobody answers while breakeven runs it"
            hint = "let the script take it as an argument, and pass that after `--`"
            if target.is_notebook:
                hint = "write the input into the cell"
        case FailureKind.EXCEPTION:
            raised = ": ".join(part for part in (failure.exception, failure.message) if part)
            message = f"{label} raised {raised}{at} {after}"
            hint = _hint_for_exception(failure, target, writes)
        case FailureKind.EXIT:
            is_number = failure.message.lstrip("-").isdecimal()
            how = f"status {failure.message}" if is_number else f"the words `{failure.message}`"
            message = f"{label} ended with {how} {after}{at}"
            hint = "breakeven needs two optimizer steps; pass the script's own arguments after `--`"
        case FailureKind.NO_STEP if num_steps:
            message = f"{label} ended {after}; a step is timed from one update to the next"
            hint = "let it run for a few more steps, with more data or epochs"
        case FailureKind.NO_STEP:
            message = (
                f"{label} ended without a training step: it called no optimizer.step(), and "
                "backward() no more than once"
            )
            hint = f"if it trains only with certain arguments, pass them after `--`; or {hint}"
        case FailureKind.NO_OPERATOR:
            message = f"{label} updates weights, but breakeven saw no torch operator in its steps"
            hint = f"they run in another process or below Python; {hint}"
        case FailureKind.TIME_LIMIT:
            wanted = "a second training step" if num_steps else "a training step"
            message = f"{label} did not complete {wanted} within {failure.message}"
            message += f"; stuck{at}" if at else ""
            hint = "raise --time-limit, or let the script load and evaluate less before it trains"
            hint = f"{slow_because}; or {hint}" if slow_because else hint
        case FailureKind.KILLED:
            message = f"{label} was ended by signal {failure.message}"
            hint = "run it with python directly to see why"
            if failure.message == "SIGKILL":
                hint = "memory may have run out: try a smaller batch"
        case FailureKind.PIPE_CLOSED:
            message = f"{label} closed file descriptors that it did not open, including breakeven's"
            hint = "close only files that the script opened; os.closerange closes all of them"
        case FailureKind.OTHER_FRAMEWORK:
            place = f" ({_place(location, '')})" if location else ""
            message = f"breakeven answers for PyTorch; {label} trains in {failure.message}{place}"
            hint = "name a script that trains with torch"
        case _:
            assert_never(failure.kind)
    processes = failure.processes
    is_without_step = failure.kind in (FailureKind.NO_STEP, FailureKind.TIME_LIMIT)
    if processes is not None and num_steps == 0 and is_without_step:
        number = processes.num_started
        others = "another process" if number == 1 else f"{number} other processes"
        started = _place(processes.location, processes.source)
        message += f"; it started {others} at {started}, and breakeven cannot time those"
        function = processes.function or "path.py:function"
        hint = (
            "if these train, train in the script's own process, or name the training function: "
            f"{function}; else {hint}"
        )
    if target.skipped:
        hint += f"; {target.caveats[0].message}"
    return ScriptError(
        message,
        hint=hint,
        file=location.file if location else None,
        line=location.line if location else None,
        # A time limit or a missing step has no traceback; the output may say more.
        output=output,
    )


def _asks(failure: RunFailure) -> bool:
    is_asked = any(word in failure.source for word in ("input(", "getpass", "stdin"))
    return failure.exception == "EOFError" and (failure.message == _NO_INPUT or is_asked)


def _hint_for_exception(failure: RunFailure, target: Target, writes: FileWrites | None) -> str:
    exception, message, missing = failure.exception, failure.message, failure.missing
    here, command = _here(), _command_of(target)
    # A constant in the script may share a name with torchrun's variables.
    words = f"{message} {failure.source}" if "env" in failure.source else message
    match exception:
        case "ShardedModelError":
            return _NO_SHARDS
        case "ModuleNotFoundError":
            top = missing.partition(".")[0]
            if top == "deepspeed":
                return _NO_SHARDS
            if Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file():
                return f"{here / top} is not in the script's folder: set PYTHONPATH={here}"
            return f"install the package of {missing or 'it'} for this Python; its name may differ"
        case "FileNotFoundError" if missing:
            where = "" if Path(missing).is_absolute() else f" (looked for in {here})"
            return f"the script needs {missing}{where}: change to its folder, or pass its path"
        case "FileExistsError":
            return "an earlier run may have made it: let the script reuse it, as with exist_ok=True"
        case "AttributeError" | "ImportError" if missing:
            return f"rename {missing}: another module of its name was imported before the script"
        case "AttributeError" | "TypeError" if target.kind is TargetKind.FUNCTION and re.search(
            r"has no function|required positional argument", message
        ):
            return "name a function of the file that can be called without arguments"
        case "AttributeError" if target.is_notebook and re.search(_SHELL, failure.source):
            return "get_ipython() is None here: leave the call out, or write it as a magic: %name"
        case "KeyError" | "TypeError" | "ValueError" if re.search(_TORCHRUN_NAMES, words):
            return f"torchrun starts the script: run `{_TORCHRUN} breakeven check ...`"
        case _ if exception == "MemoryError" or any(text in message for text in _OUT_OF_MEMORY):
            return "the step does not fit this machine's memory: try a smaller batch or model"
        case "OSError" | "PermissionError" if (
            writes is not None and writes.protection is not WriteProtection.NONE
        ):
            return (
                f"its files go to a layer in {tempfile.gettempdir()}: if it runs without breakeven "
                f"({command}), pass --keep-writes, or set TMPDIR to a folder with more space"
            )
        case _:
            pass
    said = f"check that the script runs without breakeven: {command}; if it runs, "
    ours = failure.our_line
    if ours is None:
        return f"{said}please report this"
    versions = [f"Python {platform.python_version()}", platform.platform()]
    for name in ("torch", "breakeven"):
        with suppress(PackageNotFoundError):
            versions.insert(0, f"{name} {version(name)}")
    return (
        f"{said}this is a bug in breakeven, at {ours.file}:{ours.line} ({ours.function}); please "
        f"report it with\n{', '.join(versions)}\n{failure.traceback.strip()}"
    )


def _place(location: Location, source: str) -> str:
    path, here = Path(location.file), _here()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}{line_text(location.file, location.line)}" + (f": `{source}`" if source else "")


def _here() -> Path:
    """Return the current folder, or `.` if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def _command_of(target: Target) -> str:
    """Return the command that runs the target without breakeven."""
    if target.kind is TargetKind.FUNCTION:
        name = target.function
        return f'python -c "from {Path(target.path).stem} import {name}; {name}()"'
    option = ("-m",) if target.kind is TargetKind.MODULE else ()
    program = ("jupyter", "execute") if target.is_notebook else ("python", *option)
    return " ".join((*program, target.label, *target.arguments))
