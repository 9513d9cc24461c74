"""The process that serves one request: usually a run of the target to its end.

It reports to its launcher on a pipe and never returns: the process ends after the answer.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import Any, NoReturn

import msgspec
import numpy.ma  # noqa: F401 - computing a median needs it later, when a script may hide it
import torch
import torch._dynamo  # every torch.optim needs it; importing it takes as long as torch itself
from msgspec.structs import replace

from breakeven.capture.failures import (
    failure_in_frame,
    failure_of,
    internal_failure,
    with_other_framework,
)
from breakeven.capture.gpus import gpu_here
from breakeven.capture.location import locate
from breakeven.capture.messages import (
    PIPE_CLOSED_STATUS,
    FailureKind,
    HostRequest,
    HostRun,
    Keep,
    Message,
    RatesRequest,
    RatesRun,
    Ready,
    Request,
    RunFailure,
    RunRequest,
    StepCount,
)
from breakeven.capture.pretend.parallel import offer_torchrun_variables
from breakeven.capture.process.as_main import fresh_main, put_folder_first, run_as_main
from breakeven.capture.process.own_processes import ProcessWatch
from breakeven.capture.protect.scratch import Layer, quiet_trackers
from breakeven.capture.sessions.interleaved_runs import Turns, can_take_long_turns
from breakeven.capture.sessions.numbers import NumbersSession
from breakeven.capture.sessions.plain import PlainSession
from breakeven.capture.sessions.session import ProbeSession, ScriptSession
from breakeven.capture.sessions.traced import TracedSession
from breakeven.capture.target import Target, TargetKind
from breakeven.configure import Patches, keep_freed_memory
from breakeven.errors import Caveat
from breakeven.measure import OtherLoad, measure_cpu_rates, measure_host
from breakeven.processor import cpu_name
from breakeven.rewrite import NoPatch, code_of_fast_step
from breakeven.timing import TurnKind
from breakeven.units import NS_PER_S

# Keep the originals: a script may replace them. A script that calls `os._exit` ends like one that
# calls `sys.exit`.
_exit, _fstat, _write = os._exit, os.fstat, os.write

_PROGRESS_EVERY_S = 0.2
# This number of updates suffices for an answer.
_ENOUGH_STEPS = 2
# Interval for reporting the line of a script without a step.
_WAITING_EVERY_S = 2.0
# The variable of CUDA, and that of AMD's runtime, which reads both.
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def ready(caveats: tuple[Caveat, ...] = ()) -> Ready:
    """Return the facts about torch and this machine.

    Args:
        caveats: Limits of this system.
    """
    return Ready(
        torch_version=str(torch.__version__),
        processor=cpu_name(),
        gpu=gpu_here(),
        can_take_long_turns=can_take_long_turns(),
        caveats=caveats,
    )


def answer(
    request: Request, keep: Keep, layer: Layer | None, answer_fd: int, turn_fd: int
) -> NoReturn:
    """Serve the request, send the answer, and end the process.

    Args:
        request: The request.
        keep: Side effects of the script to keep.
        layer: Destination of the script's writes.
        answer_fd: File descriptor for messages to the parent.
        turn_fd: File descriptor for the turns of a run that takes turns.
    """
    if isinstance(request, HostRequest):
        load = OtherLoad()
        calibration = measure_host(num_rounds=request.num_rounds)
        send(answer_fd, HostRun(calibration=calibration, other_load_fraction=load.fraction()))
        os._exit(0)
    if isinstance(request, RatesRequest):
        send(answer_fd, RatesRun(rates=measure_cpu_rates()))
        os._exit(0)
    offer_torchrun_variables()
    if not request.on_gpu:
        os.environ.update(dict.fromkeys(_VISIBLE_DEVICES, ""))
    if layer is not None:
        try:
            layer.enter()
        except OSError:
            send(answer_fd, internal_failure())
            os._exit(0)
    # Use a folder per run: a script may fail to create its experiments again in the folder of an
    # earlier run.
    if not keep.trackers:
        quiet_trackers(Path(os.environ["TMPDIR"], f"trackers-{os.getpid()}"))
    ChildRun(request, answer_fd, turn_fd).run()


class ChildRun:
    """Runs the target in a session until there is an answer, and sends it.

    Args:
        request: The run.
        answer_fd: File descriptor for messages to the parent.
        turn_fd: File descriptor for the turns of a run that takes turns.
    """

    def __init__(self, request: RunRequest, answer_fd: int, turn_fd: int) -> None:
        self._request = request
        self._send = AnswerPipe(answer_fd).send
        self._last_progress_s = monotonic()
        # Held by the thread that ends the process: the training loop or the watchdog.
        self._ending = threading.Lock()
        self._main_thread = threading.get_ident()
        takes_turns = request.turns is not TurnKind.NONE
        self._turns = Turns(turn_fd, self._send, request.turns) if takes_turns else None
        self._processes = ProcessWatch()
        kind = partial(PlainSession, turns=self._turns)
        if request.is_traced:
            keep_freed_memory()
            kind = TracedSession
        elif request.num_recorded_steps:
            kind = NumbersSession
        elif request.is_probe:
            kind = ProbeSession
        self._session: ScriptSession = kind(request, self._finish, self._on_step)

    def run(self) -> NoReturn:
        """Run the target until it ends or the answer is complete."""
        threading.Thread(target=self._watch_time, daemon=True).start()
        if self._request.is_traced and self._request.configuration.num_threads:
            torch.set_num_threads(self._request.configuration.num_threads)
        try:
            with self._processes, self._session, Patches() as patches:
                patches.replace(os, "_exit", self._end_at_once)
                self._run_target(self._request.target)
                if self._session.num_steps < _ENOUGH_STEPS:
                    # Wait like Python at the end of a script: its threads may train.
                    own, threads = threading.current_thread(), threading.enumerate
                    while others := [t for t in threads() if t is not own and not t.daemon]:
                        others[0].join()
        except BaseException as error:  # the user's code may raise anything
            if not self._processes.is_own:
                raise  # end like any process that a script forks
            has_failed = not isinstance(error, SystemExit) or error.code not in (None, 0)
            try:
                failure = failure_of(error, self._session.num_steps)
            except BaseException:  # the parent must receive an answer
                failure = internal_failure()
            self._finish(failure, has_failed=has_failed)
        self._finish()
        sys.exit()

    def _run_target(self, target: Target) -> None:
        if target.kind is not TargetKind.FUNCTION:
            is_module = target.kind is TargetKind.MODULE
            run_as_main(target.name, target.arguments, is_module=is_module, code_of=self._code_of)
            return
        sys.argv = [target.name, *target.arguments]
        fresh_main()
        put_folder_first(target.path)
        function = _load_function(target)
        function()
        if self._session.num_steps == 0:
            while True:  # a function that never updates weights is itself a step
                self._session.mark_call()
                function()
        before = 0
        while self._session.num_steps > before:
            before = self._session.num_steps
            function()

    def _code_of(self, text: bytes, file: str) -> CodeType | None:
        if self._request.is_traced or not self._request.configuration.fast_step:
            return None
        code = code_of_fast_step(text, file)
        return None if isinstance(code, NoPatch) else code

    def _on_step(self, num_steps: int, is_waiting: bool = False) -> None:
        now_s = monotonic()
        if self._processes.is_own and now_s - self._last_progress_s > _PROGRESS_EVERY_S:
            self._send(StepCount(num_steps=num_steps, is_waiting=is_waiting))
            self._last_progress_s = now_s

    def _finish(self, failure: RunFailure | None = None, *, has_failed: bool = False) -> None:
        """Send the session's result, or ``failure``, and end the process at once.

        The script stops at the step boundary as in a power failure: none of its ``finally``
        blocks, ``atexit`` handlers and exception handlers runs. So it cannot save a half-trained
        model over a good one. Finalizers of reference cycles do not run either: a DataLoader's
        waits up to five seconds for each worker process.

        A process that the script forked has no answer to send, and continues.
        """
        if not self._processes.is_own:
            return
        self._ending.acquire()
        gc.disable()
        try:
            answer = (None if has_failed else self._session.result()) or failure
            if answer is None:
                is_blind = isinstance(self._session, TracedSession) and self._session.is_blind
                kind = FailureKind.NO_OPERATOR if is_blind else FailureKind.NO_STEP
                answer = RunFailure(kind=kind, message="", num_steps=self._session.num_steps)
            if isinstance(answer, RunFailure):
                answer = replace(answer, processes=self._processes.found())
                with suppress(Exception):  # the script may have replaced what reads its files
                    answer = with_other_framework(answer)
            self._send(answer)
        except BaseException:  # our bug must not leave the parent waiting
            self._send(internal_failure())
        finally:
            _exit(0)

    def _end_at_once(self, status: int) -> NoReturn:
        """End the run when the script calls ``os._exit``."""
        if self._processes.is_own:
            frame, num_steps = sys._getframe(1), self._session.num_steps
            failure = failure_in_frame(FailureKind.EXIT, str(status), frame, num_steps)
            self._finish(failure, has_failed=status != 0)
        _exit(status)

    def _watch_time(self) -> None:
        begun_s = monotonic()
        left_s = self._request.time_limit_s
        while left_s > 0:
            sleep(min(left_s, _WAITING_EVERY_S))
            if self._session.num_steps == 0:
                with suppress(OSError, ValueError):  # the script's first folder may be deleted
                    location = locate(self._script_frame())
                    if location is not None and location.line:
                        self._send(StepCount(num_steps=0, location=location))
            paused_s = self._turns.paused_ns / NS_PER_S if self._turns else 0.0
            left_s = self._request.time_limit_s + paused_s - (monotonic() - begun_s)
        # Fewer steps give a timing fewer samples; a recording of numbers needs all steps.
        has_failed = self._request.num_recorded_steps > 0
        limit, num_steps = f"{self._request.time_limit_s:g} s", self._session.num_steps
        failure = failure_in_frame(FailureKind.TIME_LIMIT, limit, self._script_frame(), num_steps)
        self._finish(failure, has_failed=has_failed)

    def _script_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main_thread)


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


class AnswerPipe:
    """Sends messages, unless the script closed the descriptor.

    Args:
        fd: File descriptor of the pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pipe = _open_file(fd)
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; if the script closed the pipe, end with `PIPE_CLOSED_STATUS`.

        If the script then opened another file, that file may have the pipe's number.
        """
        # Start on a new line: the script may have written to the pipe.
        line = b"\n" + msgspec.json.encode(message) + b"\n"
        with self._lock:
            try:
                if _open_file(self._fd) != self._pipe:
                    _exit(PIPE_CLOSED_STATUS)
                while line:
                    line = line[_write(self._fd, line) :]
            except OSError:
                _exit(PIPE_CLOSED_STATUS)


def send(fd: int, message: Message) -> None:
    """Send a message to the parent.

    Args:
        fd: File descriptor of the pipe.
        message: Message to send.
    """
    with suppress(BrokenPipeError):  # the parent has ended, as the end of its requests shows too
        os.write(fd, msgspec.json.encode(message) + b"\n")


def _open_file(fd: int) -> tuple[int, int]:
    status = _fstat(fd)
    return status.st_dev, status.st_ino
