"""A process that traces cases: torch and models stay out of the one that asks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

import msgspec

from breakeven.errors import BreakevenError, WorkloadError
from breakeven.trace import StepCase, StepTrace

_Traces = tuple[StepTrace, StepTrace]


class _Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Why a case could not be traced."""

    message: str
    hint: str | None


class _Success(msgspec.Struct, frozen=True, kw_only=True, tag="success"):
    """The step at two batch sizes."""

    first: StepTrace
    second: StepTrace


_decoder = msgspec.msgpack.Decoder(_Failure | _Success)

# Ctrl-C reaches the whole group; the parent alone decides what to do about it, also while the
# imports below take their time. What the parent can import, the child can.
_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from breakeven.workloads.trace_worker import serve
serve({descriptor})
"""


class TraceWorker:
    """One child process, given a case at a time.

    It is a program of its own, not one of `multiprocessing`, which would run the script of its
    parent again. It ends by itself when its parent does, however that ends: it reads the end of
    its pipe then.
    """

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise BreakevenError(
                "on Windows, the steps of workloads cannot be traced",
                hint="run the same command on Linux or macOS, or under WSL",
            )
        self.connection, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            program = _PROGRAM.format(path=list(map(str, sys.path)), descriptor=descriptor)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
            )
        self._case: StepCase | None = None

    def start(self, case: StepCase) -> None:
        """Begin to trace ``case``; ``connection`` becomes readable when it is done."""
        self._case = case
        self.connection.send_bytes(msgspec.msgpack.encode(case))

    def result(self) -> tuple[StepCase, _Traces | BreakevenError]:
        """Return the case and its traces, or why there are none.

        The process may have died of it; `is_alive` says so.
        """
        case = self._case
        assert case is not None, "a case was started"
        self._case = None
        try:
            answer = _decoder.decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            return case, _death(case, self._process.wait())
        if isinstance(answer, _Failure):
            return case, WorkloadError(answer.message, hint=answer.hint)
        return case, (answer.first, answer.second)

    @property
    def is_alive(self) -> bool:
        """Return whether the process can take another case."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process now, whatever it does."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def _death(case: StepCase, exit_code: int) -> WorkloadError:
    is_killed = exit_code < 0
    ending = f"was killed by signal {-exit_code}" if is_killed else "ended early"
    return WorkloadError(
        f"{case.workload!r} cannot be traced: its process {ending}",
        hint="memory may have run out: trace fewer cases at once" if is_killed else None,
    )


def serve(descriptor: int) -> None:
    """Trace each case that arrives until there is nobody left to send one.

    Args:
        descriptor: Where cases arrive, and answers go.
    """
    connection: Connection[Any, Any] = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # Standard output is for the answer; what a user's file prints is none.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    trace_base = importlib.import_module("breakeven.workloads.case_traces").trace_base
    while True:
        try:
            case = msgspec.msgpack.decode(connection.recv_bytes(), type=StepCase)
        except (EOFError, OSError):
            return
        answer: _Success | _Failure
        try:
            first, second = trace_base(case)
            answer = _Success(first=first, second=second)
        except BreakevenError as error:
            answer = _Failure(message=error.message, hint=error.hint)
        try:
            connection.send_bytes(msgspec.msgpack.encode(answer))
        except OSError:
            return
