"""One run of the target, in the process made for it. Never returns: the process ends with it."""

from __future__ import annotations

import gc
import importlib.util
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, NoReturn

import msgspec
import torch

from breakeven.capture._as_main import fresh_main, put_folder_first, run_as_main
from breakeven.capture._location import as_text, is_user_file, locate, location_of, user_frame
from breakeven.capture._numbers_session import NumbersSession
from breakeven.capture._plain_session import PlainSession
from breakeven.capture._protocol import (
    FailureKind,
    Message,
    RunFailure,
    RunRequest,
    StepCount,
    Target,
    TargetKind,
)
from breakeven.capture._traced_session import TracedSession
from breakeven.capture._turns import Turns
from breakeven.configure import keep_freed_memory
from breakeven.timing import TurnKind
from breakeven.trace import Location
from breakeven.units import NS_PER_S

_PROGRESS_EVERY_S = 0.2


class ChildRun:
    """Runs the target under a session until there is an answer, and sends it.

    Args:
        request: What to run, and how.
        answer_fd: File descriptor for messages to the parent.
        turn_fd: File descriptor for the turns of a run that takes turns.
    """

    def __init__(self, request: RunRequest, answer_fd: int, turn_fd: int) -> None:
        self._request = request
        self._answer_fd = answer_fd
        self._last_progress_s = monotonic()
        # Whoever takes it ends the process: the training loop or the watchdog.
        self._ending = threading.Lock()
        self._main_thread = threading.get_ident()
        if request.is_traced:
            keep_freed_memory()
        takes_turns = request.turns is not TurnKind.NONE
        self._turns = Turns(turn_fd, answer_fd, request.turns) if takes_turns else None
        self._session = self._make_session()

    def run(self) -> NoReturn:
        """Run the target to its end or to the answer, whatever comes first."""
        threading.Thread(target=self._watch_time, daemon=True).start()
        if self._request.is_traced and self._request.configuration.num_threads:
            torch.set_num_threads(self._request.configuration.num_threads)
        try:
            with self._session:
                self._run_target(self._request.target)
        except SystemExit as error:
            has_failed = error.code not in (None, 0)
            self._finish(self._explain(error), has_failed=has_failed)
        except BaseException as error:  # the user's code may raise anything
            self._finish(self._explain(error), has_failed=True)
        self._finish()
        raise AssertionError("the process has ended")

    def _run_target(self, target: Target) -> None:
        if target.kind is not TargetKind.FUNCTION:
            text = self._request.raw_changed_text
            if text:
                _keep_lines(text, target.path)
            is_module = target.kind is TargetKind.MODULE
            run_as_main(target.name, target.arguments, is_module=is_module, text=text or None)
            return
        sys.argv = [target.name, *target.arguments]
        fresh_main()
        put_folder_first(target.path)
        function = _load_function(target)
        function()
        if self._session.num_steps == 0:
            self._repeat_as_step(function)
        while self._session.num_steps > 0:
            before = self._session.num_steps
            function()
            if self._session.num_steps == before:
                break

    def _repeat_as_step(self, function: Callable[[], Any]) -> NoReturn:
        """A function that never updates weights is a step itself."""
        while True:
            self._session.mark_call()
            function()

    def _on_step(self, num_steps: int) -> None:
        now_s = monotonic()
        if now_s - self._last_progress_s > _PROGRESS_EVERY_S:
            self._send(StepCount(num_steps=num_steps))
            self._last_progress_s = now_s

    def _finish(self, failure: RunFailure | None = None, *, has_failed: bool = False) -> None:
        """Send what there is, or ``failure``, and end the process at once.

        No ``finally`` block, ``atexit`` handler or exception handler of the user runs: the script
        stops at the step boundary as if the power had failed, and cannot save a half-trained
        model over a good one. Nor does a finalizer of what the script left in a reference cycle: a
        DataLoader's waits up to five seconds for each of its processes.
        """
        self._ending.acquire()
        gc.disable()
        try:
            answer = (None if has_failed else self._session.result()) or failure or self._no_step()
            self._send(answer)
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
        except BaseException:  # a bug of ours must not leave the parent waiting
            self._send(_internal_failure())
        finally:
            os._exit(0)

    def _make_session(self) -> PlainSession | TracedSession | NumbersSession:
        if self._request.is_traced:
            return TracedSession(self._request, self._finish, self._on_step)
        if self._request.num_recorded_steps:
            return NumbersSession(self._request, self._finish, self._on_step)
        return PlainSession(self._request, self._finish, self._on_step, self._turns)

    def _watch_time(self) -> None:
        begun_s = monotonic()
        left_s = self._request.time_limit_s
        while left_s > 0:
            threading.Event().wait(left_s)
            paused_s = self._turns.paused_ns / NS_PER_S if self._turns else 0.0
            left_s = self._request.time_limit_s + paused_s - (monotonic() - begun_s)
        frame = sys._current_frames().get(self._main_thread)
        stood_at = user_frame(frame)
        location = locate(stood_at)
        self._finish(
            RunFailure(
                kind=FailureKind.TIME_LIMIT,
                message=f"{self._request.time_limit_s:g} s",
                location=location,
                source=_source_line(location),
                num_steps=self._session.num_steps,
                stack=_stack_of_frame(frame),
            ),
            # Fewer steps are fewer samples, but they are not the recording that was asked for.
            has_failed=self._request.num_recorded_steps > 0,
        )

    def _no_step(self) -> RunFailure:
        is_blind = isinstance(self._session, TracedSession) and self._session.is_blind
        kind = FailureKind.NO_OPERATOR if is_blind else FailureKind.NO_STEP
        return RunFailure(kind=kind, message="", num_steps=self._session.num_steps)

    def _explain(self, error: BaseException) -> RunFailure:
        stack = _stack_of_error(error)
        location = stack[-1] if stack else None
        kind = FailureKind.EXCEPTION
        if isinstance(error, SystemExit):
            kind = FailureKind.EXIT
        return RunFailure(
            kind=kind,
            message=_text_of(error),
            exception=type(error).__name__,
            location=location,
            source=_source_line(location),
            num_steps=self._session.num_steps,
            missing=_missing_thing(error),
            stack=stack,
        )

    def _send(self, message: Message) -> None:
        line = msgspec.json.encode(message) + b"\n"
        while line:
            line = line[os.write(self._answer_fd, line) :]


def _keep_lines(text: bytes, path: str) -> None:
    """Let whoever asks for the source of a function get this text, and not that of the file."""
    # Lines of bytes end where Python's do; those of a str also at form feeds.
    lines = [line.decode() for line in text.splitlines(keepends=True)]
    linecache.cache[path] = (len(text), None, lines, path)


def _load_function(target: Target) -> Callable[[], Any]:
    name = Path(target.path).stem
    specification = importlib.util.spec_from_file_location(name, target.path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    function = getattr(module, target.function, None)
    if not callable(function):
        defined = [key for key, value in vars(module).items() if callable(value)]
        raise AttributeError(
            f"{Path(target.path).name} has no function {target.function!r}; it has "
            + ", ".join(sorted(defined)[:8])
        )
    return function


def _text_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return as_text(str(error.code if error.code is not None else 0))
    if isinstance(error, SyntaxError):
        return as_text(error.msg)
    return as_text(str(error))


def _missing_thing(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, FileNotFoundError):
        return as_text(str(error.filename or ""))
    return ""


def _stack_of_error(error: BaseException) -> tuple[Location, ...]:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return (location_of(error.filename, error.lineno),)
    found: list[Location] = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if is_user_file(code.co_filename):
            found.append(location_of(code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return tuple(found)


def _stack_of_frame(frame: FrameType | None) -> tuple[Location, ...]:
    found: list[Location] = []
    while frame is not None:
        location = locate(frame) if is_user_file(frame.f_code.co_filename) else None
        if location is not None:
            found.append(location)
        frame = frame.f_back
    return tuple(reversed(found))


def _source_line(location: Location | None) -> str:
    return linecache.getline(location.file, location.line).strip() if location else ""


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return  # the script closed or replaced it


def _internal_failure() -> RunFailure:
    return RunFailure(
        kind=FailureKind.INTERNAL, message=traceback.format_exc(), exception="breakeven"
    )
