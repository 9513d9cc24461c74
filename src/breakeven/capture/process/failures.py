"""What is known of a run that failed: the exception, the lines that led there, what was missing.

And which processes the script started by itself, whose training steps nobody else would see.
"""

from __future__ import annotations

import functools
import linecache
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

from breakeven.capture.answers import FailureKind, OwnProcesses, RunFailure
from breakeven.capture.location import (
    as_text,
    is_our_file,
    is_user_file,
    locate,
    location_of,
    outermost_user_frame,
)
from breakeven.configure import Patches
from breakeven.trace import Location

_FOLDER = Path(__file__).resolve().parents[3]
# The end of a traceback tells most, and the beginning of a message: torch's may list all backends.
_MAX_TRACEBACK = 6_000
# Of a recursion a million calls deep, all but the last would take minutes to format.
_MAX_FRAMES = 100
_MAX_MESSAGE = 1_000


def failure_of(error: BaseException, num_steps: int) -> RunFailure:
    """Return what ended a run, with the user's line that led there.

    Args:
        error: What the script raised.
        num_steps: Steps done until then.
    """
    location = _user_line(error)
    is_exit = isinstance(error, SystemExit)
    return RunFailure(
        kind=FailureKind.EXIT if is_exit else FailureKind.EXCEPTION,
        message=_text_of(error),
        exception=type(error).__name__,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
        missing=_missing_thing(error),
        our_line=_our_line(error),
        traceback=_traceback_of(error),
    )


def failure_in_frame(
    kind: FailureKind, message: str, frame: FrameType | None, num_steps: int
) -> RunFailure:
    """Return what ended a run that did not end by itself.

    Args:
        kind: Why.
        message: What was missing.
        frame: Where the script stood.
        num_steps: Steps done until then.
    """
    location = locate(frame)
    caller = locate(outermost_user_frame(frame))
    if caller == location:
        caller = None
    return RunFailure(
        kind=kind,
        message=message,
        location=location,
        source=source_line(location),
        caller=caller,
        caller_source=source_line(caller),
        num_steps=num_steps,
    )


def _traceback_of(error: BaseException) -> str:
    message = "".join(traceback.format_exception_only(error))
    lines = "".join(traceback.format_exception(error, limit=-_MAX_FRAMES)).removesuffix(message)[
        -_MAX_TRACEBACK:
    ]
    end = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...\n"
    return as_text(lines + end)


def internal_failure() -> RunFailure:
    """Return the failure that is being handled, which is breakeven's own."""
    return RunFailure(
        kind=FailureKind.INTERNAL, message=as_text(traceback.format_exc()), exception="breakeven"
    )


def source_line(location: Location | None) -> str:
    """Return the text of a line."""
    return linecache.getline(location.file, location.line).strip() if location else ""


def _text_of(error: BaseException) -> str:
    said: object = error
    if isinstance(error, SystemExit):
        said = error.code if error.code is not None else 0
    if isinstance(error, SyntaxError):
        said = error.msg
    try:
        return as_text(str(said))
    except Exception:  # what the user's class raises
        return f"<{type(said).__name__} without words>"


def _missing_thing(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, FileNotFoundError):
        return as_text(str(error.filename or ""))
    return ""


def _user_line(error: BaseException) -> Location | None:
    """Return the innermost line of the user that an exception passed."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return location_of(error.filename, error.lineno)
    passed = [each for each in _lines(error) if is_user_file(each[0])]
    return location_of(*passed[-1]) if passed else None


def _our_line(error: BaseException) -> Location | None:
    """Return the line of breakeven's that raised an exception; None where others' code did."""
    *_, last = (("", 0, ""), *_lines(error))
    file, line, name = last
    if not is_our_file(file):
        return None
    return location_of(str(Path(file).resolve().relative_to(_FOLDER)), line, name)


def _lines(error: BaseException) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and function of each frame that an exception passed, outermost first."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name


# Not what a script puts in its place.
_getpid = os.getpid
# Of a forked process; it says no more than that.
_MAX_NOTED_STEPS = 3
# Processes that libraries start for other work than training.
_LIBRARY_WORK = (
    "torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource",
    "breakeven.capture.record.loader_facts",
)  # fmt: skip
_PYTHON_PROGRAMS = ("python", "torchrun", "accelerate", "deepspeed")


class ProcessWatch(Patches):
    """Notes inside where the script starts processes, and steps that forked ones take."""

    def __init__(self) -> None:
        super().__init__()
        self._process = _getpid()
        self._steps_read, self._steps_write = os.pipe()
        self._num_noted = 0
        self._num_started = 0
        self._location: Location | None = None
        self._function = ""
        # Within the start of a process that is noted already.
        self._is_starting = False

    def _apply(self) -> None:
        start, popen = BaseProcess.start, subprocess.Popen.__init__

        @functools.wraps(start)
        def start_noted(process: BaseProcess) -> None:
            target = getattr(process, "_target", None)
            while isinstance(target, functools.partial):
                target = target.func
            is_noted = not str(getattr(target, "__module__", "")).startswith(_LIBRARY_WORK)
            self._start(start, process, is_noted=is_noted, function=_function_of(process))

        @functools.wraps(popen)
        def popen_noted(process: Any, args: Any, *others: Any, **options: Any) -> None:
            self._start(popen, process, args, *others, is_noted=_is_python(args), **options)

        self.replace(BaseProcess, "start", start_noted)
        self.replace(subprocess.Popen, "__init__", popen_noted)
        # Cannot be undone, but the process ends with the run.
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(before=self._before_fork)

    @property
    def is_own(self) -> bool:
        """Return whether this is the script's own process, and not one that it has forked."""
        return _getpid() == self._process

    def note_step(self) -> None:
        """Take note of a step in a forked process."""
        if self._num_noted < _MAX_NOTED_STEPS:
            self._num_noted += 1
            with suppress(OSError):  # the script has closed what it does not know
                os.write(self._steps_write, b".")

    def wait_for_steps(self, limit_s: float) -> bool:
        """Wait until forked processes have taken steps; return False when the time is over."""
        try:
            if not select.select([self._steps_read], [], [], max(0.0, limit_s))[0]:
                return False
            self._num_noted += len(os.read(self._steps_read, 64))
        except (OSError, ValueError):
            sleep(max(0.0, limit_s))
            return False
        return True

    def found(self) -> OwnProcesses | None:
        """Return what is known of the processes; None where there are none."""
        if self._location is None:
            return None
        # Those that had no time to be waited for.
        self.wait_for_steps(0.0)
        return OwnProcesses(
            num_started=self._num_started,
            location=self._location,
            source=linecache.getline(self._location.file, self._location.line).strip(),
            function=self._function,
            has_steps=self._num_noted > 0,
        )

    def _start(
        self, start: Callable[..., None], *args: Any, is_noted: bool, function: str = "",
        **options: Any,
    ) -> None:  # fmt: skip
        was_starting, self._is_starting = self._is_starting, True
        try:
            if is_noted and self.is_own and not was_starting:
                self._note(function)
            start(*args, **options)
        finally:
            self._is_starting = was_starting

    def _before_fork(self) -> None:
        if self.is_own and not self._is_starting:
            self._note("")

    def _note(self, function: str) -> None:
        location = locate(sys._getframe(1))
        if location is not None:
            self._num_started += 1
            self._location, self._function = location, function or self._function


def _function_of(process: BaseProcess) -> str:
    """Return ``train.py:train`` for a process that runs a function of the user's; or nothing."""
    function = getattr(process, "_target", None)
    if getattr(function, "__module__", "") == "torch.multiprocessing.spawn":
        function = next(iter(getattr(process, "_args", ())), None)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", "")
    if code is None or not name.isidentifier() or not is_user_file(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{name}"


def _is_python(command: Any) -> bool:
    first = command[0] if isinstance(command, list | tuple) and command else command
    words = os.fsdecode(first).split() if isinstance(first, str | bytes | os.PathLike) else []
    return bool(words) and Path(words[0]).name.startswith(_PYTHON_PROGRAMS)
