"""Why a run gave no answer, in the user's words: the line, what happened there, what to do."""

from __future__ import annotations

import platform
import re
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from breakeven.capture import FailureKind, Launcher, RunFailure, Target, TargetKind
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import Location, WriteProtection

# What torchrun sets for the first process.
_LAUNCHER_ENVIRONMENT = (
    "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500"
)

# Signals by which a script limits its own time.
TIMERS = frozenset({"SIGALRM", "SIGPROF", "SIGVTALRM", "SIGXCPU"})

# Where a script has no step.
_STEP_HINT = (
    "if it trains only with certain arguments, pass them after `--`; or name a function that does "
    "one step: path.py:function"
)

# What to do about exceptions that mean one thing.
_HINTS = {
    "FileExistsError": "breakeven runs the script several times, and an earlier run may have made "
    "it: let the script take what is there, for instance with exist_ok=True",
    "EOFError": "the script reads standard input, which is empty here: pass what it asks for as an "
    "argument after `--`",
    "SyntaxError": "the file is no Python that this version understands",
}
# What torchvision raises where its library of operators does not load.
_NO_TORCHVISION_OPERATORS = "operator torchvision::"
# What a layer over its files may do to a script, and the files themselves do not.
_FILE_ERRORS = frozenset({"OSError", "PermissionError"})
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")


def error_of_run(
    launcher: Launcher,
    failure: RunFailure,
    target: Target,
    output: str,
    *,
    slow_because: str = "",
) -> BreakevenError:
    """Return the error that says what ended the run.

    Args:
        launcher: Made the run.
        failure: What came of it.
        target: What it ran.
        output: The end of what the script printed.
        slow_because: What may have made the step too slow, and what to do about it, where known.
    """
    if failure.kind is FailureKind.TIME_LIMIT:
        return script_error(failure, target, output, known=slow_because)
    command, writes = command_of(target), launcher.writes
    known = ""
    if (
        failure.exception in _FILE_ERRORS
        and writes is not None
        and writes.protection is not WriteProtection.NONE
    ):
        known = (
            f"its files go to a layer that is thrown away, in {tempfile.gettempdir()}; if it does "
            f"not fail so without breakeven ({command}), give it --keep-writes, or name a folder "
            "with more space by TMPDIR"
        )
    return script_error(failure, target, output, known=known)


def script_error(
    failure: RunFailure, target: Target, output: str, *, known: str = ""
) -> BreakevenError:
    """Return the error that says what ended the run.

    Args:
        failure: What the child reported.
        target: What it ran.
        output: The end of what the script printed.
        known: What to do where the exception itself does not say it.
    """
    if failure.kind is FailureKind.INTERNAL:
        return BreakevenError(
            f"breakeven failed while it watched {target.label}: {_last_line(failure.message)}",
            hint=f"this is a bug in breakeven; please report it with:\n{failure.message}",
        )
    message, hint = _explain(failure, target, known)
    return _error_at(failure, message, hint, output)


def _error_at(failure: RunFailure, message: str, hint: str, output: str) -> ScriptError:
    location = failure.location
    return ScriptError(
        message,
        hint=hint,
        file=location.file if location else None,
        line=location.line if location else None,
        # A time limit or a missing step has no traceback; the output may say more.
        output=output,
    )


def _is_in_other_processes(failure: RunFailure) -> bool:
    """Return whether a script that took no step itself has started processes, which may have."""
    if failure.kind is FailureKind.OTHER_PROCESS:
        return True
    is_without = failure.kind in (FailureKind.NO_STEP, FailureKind.TIME_LIMIT)
    return is_without and failure.num_steps == 0 and failure.processes is not None


def _explain(failure: RunFailure, target: Target, known: str) -> tuple[str, str]:
    if _is_in_other_processes(failure):
        return _explain_processes(failure, target)
    match failure.kind:
        case FailureKind.EXCEPTION:
            return _explain_exception(failure, target, known)
        case FailureKind.EXIT:
            return (
                f"{target.label} ended {_status(failure)} {_after(failure)}{_at(failure)}",
                "breakeven needs two optimizer steps; give the script the arguments it needs "
                "after `--`",
            )
        case FailureKind.NO_STEP:
            return _explain_no_step(failure, target)
        case FailureKind.NO_OPERATOR:
            return (
                f"{target.label} updates weights, but no operator of torch was seen in its steps",
                "they run in another process or below Python; name a function that does one step: "
                "path.py:function",
            )
        case FailureKind.TIME_LIMIT:
            return (
                f"{target.label} did not complete {_wanted(failure)} within {failure.message}"
                f"{_stuck(failure)}",
                (f"{known}; or " if known else "")
                + "raise --time-limit, or give the script a smaller model, or less to load or to "
                "evaluate before it trains",
            )
        case FailureKind.KILLED:
            return (
                # After how many steps, is not known.
                f"{target.label} was ended by signal {failure.message}",
                _signal_hint(failure.message),
            )
        case FailureKind.CUT_OFF:
            return (
                f"{target.label} closed file descriptors that it had not opened, among them the "
                "one by which breakeven hears of its steps",
                "let it close its own files alone: os.closerange and the like also take away what "
                "libraries hold open",
            )
        case FailureKind.OTHER_PROCESS | FailureKind.INTERNAL:
            raise AssertionError("handled by the caller")


def _explain_processes(failure: RunFailure, target: Target) -> tuple[str, str]:
    processes = failure.processes
    function, line = "path.py:function", ""
    if processes is not None:
        function = processes.function or function
        line = f" at {_text_of_line(processes.location, processes.source)}"
    hint = (
        "name the function that trains, if it can be called without arguments: "
        f"{function}; or let the script train in its own process"
    )
    if processes is None or processes.has_steps:
        return (
            f"{target.label} trains in processes that it starts{line}; breakeven sees the "
            "steps of the script's own process alone",
            hint,
        )
    number = processes.num_started
    others = "another process" if number == 1 else f"{number} other processes"
    unseen = f"it started {others}{line}, whose steps breakeven does not see"
    if failure.kind is FailureKind.TIME_LIMIT:
        return (
            f"{target.label} did not complete a training step in its own process within "
            f"{failure.message}{_stuck(failure)}; {unseen}",
            f"where these train, {hint}; otherwise raise --time-limit",
        )
    return (
        f"{target.label} ended without a training step in its own process; {unseen}",
        f"where these train, {hint}; {_STEP_HINT}",
    )


def _explain_exception(failure: RunFailure, target: Target, known: str) -> tuple[str, str]:
    raised = ": ".join(part for part in (failure.exception, failure.message) if part)
    message = f"{target.label} raised {raised}{_at(failure)} {_after(failure)}"
    if failure.exception == "ModuleNotFoundError":
        return message, _install_hint(failure.missing)
    if failure.exception == "FileNotFoundError" and failure.missing:
        missing = Path(failure.missing)
        where = "" if missing.is_absolute() else f" (looked for in {_here()})"
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
    if _NO_TORCHVISION_OPERATORS in failure.message:
        return (
            message,
            "this torchvision is built for another torch, of another release or with CUDA where "
            "torch has none: install both from one index, such as `python -m pip install torch "
            "torchvision --index-url https://download.pytorch.org/whl/cpu`",
        )
    if failure.exception in _HINTS:
        return message, _HINTS[failure.exception]
    if failure.exception == "MemoryError" or any(
        text in failure.message for text in _OUT_OF_MEMORY
    ):
        return message, "the step does not fit this machine's memory: try a smaller batch or model"
    if target.kind is TargetKind.FUNCTION and failure.exception == "AttributeError":
        return message, "name a function that the file defines: path.py:function"
    if target.kind is TargetKind.FUNCTION and "required positional argument" in failure.message:
        return message, "name a function that can be called without arguments"
    return message, known or _own_fault(failure, target)


def _own_fault(failure: RunFailure, target: Target) -> str:
    said = f"the script must run by itself first: {command_of(target)}; "
    ours = failure.our_line
    if ours is None:
        return f"{said}if it does, please report this"
    return (
        f"{said}if it does, this is a bug in breakeven, at {ours.file}:{ours.line} "
        f"({ours.function}); please report it with\n{_versions()}\n{failure.traceback.strip()}"
    )


def _install_hint(module: str) -> str:
    """Return what to do about a module that cannot be found."""
    top = module.partition(".")[0]
    if Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file():
        return (
            f"{_here() / top} is here, but Python looks beside the script: add the folder, with "
            f"PYTHONPATH={_here()}, or run the script as a module with -m"
        )
    return f"install the package that has {module or 'it'} for this Python; its name may differ"


def _status(failure: RunFailure) -> str:
    """Return how a script ended itself: by a number, or by its last words."""
    is_number = failure.message.lstrip("-").isdecimal()
    return f"with status {failure.message}" if is_number else f"with the words `{failure.message}`"


def _versions() -> str:
    found = [f"Python {platform.python_version()}", platform.platform()]
    for name in ("torch", "breakeven"):
        with suppress(PackageNotFoundError):
            found.insert(0, f"{name} {version(name)}")
    return ", ".join(found)


def _needs_launcher(failure: RunFailure) -> bool:
    """Return whether a variable is missing that ``torchrun`` sets for each process."""
    names = {setting.split("=")[0] for setting in _LAUNCHER_ENVIRONMENT.split()}
    # A constant of the script may have such a name too.
    source = failure.source if "env" in failure.source else ""
    return not names.isdisjoint(re.findall(r"\w+", f"{failure.message} {source}"))


def _explain_no_step(failure: RunFailure, target: Target) -> tuple[str, str]:
    if failure.num_steps == 0:
        return (
            f"{target.label} ended without a training step: no optimizer was stepped, and not "
            "more than one backward pass made",
            _STEP_HINT,
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


def _stuck(failure: RunFailure) -> str:
    if not failure.location:
        return ""
    caller = failure.caller
    called = f", called from {_text_of_line(caller, failure.caller_source)}" if caller else ""
    return f"; stuck at {_line_of(failure)}{called}"


def _line_of(failure: RunFailure) -> str:
    location = failure.location
    assert location is not None
    return _text_of_line(location, failure.source)


def _text_of_line(location: Location, source: str) -> str:
    place = _place(location)
    return f"{place}: `{source}`" if source else place


def _place(location: Location) -> str:
    path = Path(location.file)
    here = _here()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}:{location.line}"


def _here() -> Path:
    """Return the current folder, as `.` where it was deleted meanwhile."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def command_of(target: Target) -> str:
    """Return how Python alone runs the target."""
    if target.kind is TargetKind.FUNCTION:
        name = target.function
        return f'python -c "from {Path(target.path).stem} import {name}; {name}()"'
    option = ("-m",) if target.kind is TargetKind.MODULE else ()
    return " ".join(("python", *option, target.label, *target.arguments))


def _signal_hint(name: str) -> str:
    if name == "SIGKILL":
        return "the system ends processes that need more memory than there is: try a smaller batch"
    if name in TIMERS:
        return "the script limits its own time, of which watching it takes more: give it more"
    return "run it with python directly to see why"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
