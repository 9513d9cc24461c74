"""Why a run gave no answer, in the user's words: the line, what happened there, what to do."""

from __future__ import annotations

import re
from pathlib import Path

from breakeven.capture import FailureKind, RunFailure, Target, TargetKind
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import Location

# What torchrun tells the first process.
_LAUNCHER_ENVIRONMENT = (
    "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500"
)

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")


def script_error(failure: RunFailure, target: Target, output: str) -> BreakevenError:
    """Return the error that says what ended the run.

    Args:
        failure: What the child reported.
        target: What it ran.
        output: The end of what the script printed.
    """
    if failure.kind is FailureKind.INTERNAL:
        return BreakevenError(
            f"breakeven failed while it watched {target.label}: {_last_line(failure.message)}",
            hint=f"this is a bug in breakeven; please report it with:\n{failure.message}",
        )
    message, hint = _explain(failure, target)
    location = failure.location
    return ScriptError(
        message,
        hint=hint,
        file=location.file if location else None,
        line=location.line if location else None,
        # A time limit or a missing step has no traceback; the output may tell more.
        output=output,
    )


def _explain(failure: RunFailure, target: Target) -> tuple[str, str]:
    match failure.kind:
        case FailureKind.EXCEPTION:
            return _explain_exception(failure, target)
        case FailureKind.EXIT:
            return (
                f"{target.label} ended with status {failure.message} {_after(failure)}"
                f"{_at(failure)}",
                "breakeven needs two optimizer steps; give the script the arguments it needs "
                "after `--`",
            )
        case FailureKind.NO_STEP:
            return _explain_no_step(failure, target)
        case FailureKind.TIME_LIMIT:
            stood = f"; it stood at {_line_of(failure)}" if failure.location else ""
            return (
                f"{target.label} did not complete {_wanted(failure)} within {failure.message}"
                f"{stood}",
                "raise --time-limit, or give the script a smaller model or less data to load",
            )
        case FailureKind.KILLED:
            return (
                f"{target.label} was ended by signal {failure.message} {_after(failure)}",
                _signal_hint(failure.message),
            )
        case FailureKind.INTERNAL:
            raise AssertionError("handled by the caller")


def _explain_exception(failure: RunFailure, target: Target) -> tuple[str, str]:
    what = f"{failure.exception}: {failure.message}" if failure.message else failure.exception
    message = f"{target.label} raised {what}{_at(failure)} {_after(failure)}"
    if failure.exception == "ModuleNotFoundError":
        return message, f"install it for this Python: python -m pip install {failure.missing}"
    if failure.exception == "FileNotFoundError":
        missing = Path(failure.missing)
        where = "" if missing.is_absolute() else f" (looked for in {Path.cwd()})"
        return (
            message,
            f"the script needs {failure.missing}{where}: run where it is, or pass its path",
        )
    if failure.exception in ("KeyError", "TypeError", "ValueError") and _needs_launcher(failure):
        return (
            message,
            "the script is started by torchrun, which sets variables of the environment: run "
            f"`{_LAUNCHER_ENVIRONMENT} breakeven check ...`, with the number of GPUs as WORLD_SIZE",
        )
    if failure.exception == "EOFError":
        return (
            message,
            "the script reads standard input, which is empty here: pass what it asks "
            "for as an argument after `--`",
        )
    if failure.exception == "SyntaxError":
        return message, "the file is no Python that this version understands"
    if failure.exception == "MemoryError" or any(
        text in failure.message for text in _OUT_OF_MEMORY
    ):
        return message, "the step does not fit this machine's memory: try a smaller batch or model"
    if target.kind is TargetKind.FUNCTION and failure.exception == "AttributeError":
        return message, "name a function that the file defines: path.py:function"
    if target.kind is TargetKind.FUNCTION and "required positional argument" in failure.message:
        return message, "name a function that can be called without arguments"
    return message, f"the script must run by itself first: {_command(target)}"


def _needs_launcher(failure: RunFailure) -> bool:
    """Return whether a variable is missing that ``torchrun`` sets for each process."""
    names = {setting.split("=")[0] for setting in _LAUNCHER_ENVIRONMENT.split()}
    return not names.isdisjoint(re.findall(r"\w+", f"{failure.message} {failure.source}"))


def _explain_no_step(failure: RunFailure, target: Target) -> tuple[str, str]:
    if failure.num_steps == 0:
        return (
            f"{target.label} ended without a training step: no torch optimizer was stepped",
            "a step is a call of optimizer.step(); for a loop without one, name a function that "
            "does one step: path.py:function",
        )
    return (
        f"{target.label} ended {_after(failure)}; a step is timed from one update to the next",
        "let it run for a few more steps, with more data or epochs",
    )


def _wanted(failure: RunFailure) -> str:
    return "a training step" if failure.num_steps == 0 else "a second training step"


def _after(failure: RunFailure) -> str:
    if failure.num_steps == 0:
        return "before its first training step"
    plural = "" if failure.num_steps == 1 else "s"
    return f"after {failure.num_steps} training step{plural}"


def _at(failure: RunFailure) -> str:
    return f" at {_line_of(failure)}" if failure.location else ""


def _line_of(failure: RunFailure) -> str:
    location = failure.location
    assert location is not None
    place = _place(location)
    return f"{place}: `{failure.source}`" if failure.source else place


def _place(location: Location) -> str:
    path = Path(location.file)
    try:
        shown = path.relative_to(Path.cwd())
    except ValueError:
        shown = path
    return f"{shown}:{location.line}"


def _command(target: Target) -> str:
    """Return how Python alone runs the target."""
    if target.kind is TargetKind.FUNCTION:
        name = target.function
        return f'python -c "from {Path(target.path).stem} import {name}; {name}()"'
    option = ("-m",) if target.kind is TargetKind.MODULE else ()
    return " ".join(("python", *option, target.label, *target.arguments))


def _signal_hint(name: str) -> str:
    if name == "SIGKILL":
        return "the system ends processes that need more memory than there is: try a smaller batch"
    return "run it with python directly to see why"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
