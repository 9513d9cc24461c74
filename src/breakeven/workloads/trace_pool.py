"""Trace many cases in parallel child processes, each once, and cache the traces."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import msgspec

from breakeven.errors import BreakevenError, WorkloadError
from breakeven.processor import num_cores
from breakeven.store import TRACES, code_digest, installed_version
from breakeven.trace import ScaledTrace, StepCase, StepTrace
from breakeven.workloads.spec import WorkloadKind, as_asked, base_case, parse_workload

Traces = tuple[StepTrace, StepTrace]
_Outcome = Traces | BreakevenError
_PACKAGES = ("breakeven", "torch", "torchvision", "timm", "transformers")
# Packages whose code affects the recording of a workload.
_RECORDING = ("capture", "workloads", "trace")
# Ctrl-C reaches the whole process group; only the parent handles it, even during the imports below.
# The child can import everything that the parent can.
_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from breakeven.workloads.trace_pool import serve
serve({descriptor})
"""


def trace_cases(
    cases: Iterable[StepCase],
    *,
    num_processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[StepCase, ScaledTrace | BreakevenError]:
    """Return the trace of each distinct case, or the error that prevents it.

    Traces are cached on disk, except those of the user's own files, whose code may change. Cases
    that differ only in TF32, in the copy of the batch, or in timing the backward phase alone share
    one trace. Models are built in child processes of one thread each.

    Args:
        cases: The cases to trace.
        num_processes: Number of parallel processes; by default the number of cores.
        progress: Called with the number of finished and of all traces, first before any is made.
    """
    wanted = list(dict.fromkeys(cases))
    outcomes: dict[StepCase, _Outcome] = {}
    missing: deque[StepCase] = deque()
    bases = list(dict.fromkeys(map(base_case, wanted)))

    def is_kept(case: StepCase) -> bool:
        return parse_workload(case.workload).kind is not WorkloadKind.FILE

    def tell() -> None:
        if progress is not None:
            progress(len(outcomes), len(bases))

    for base in bases:
        try:
            stored = TRACES.read(trace_key(base), Traces) if is_kept(base) else None
        except BreakevenError as error:
            outcomes[base] = error
            continue
        if stored is None:
            missing.append(base)
        else:
            outcomes[base] = stored
    tell()
    workers: dict[Any, TraceWorker] = {}
    try:
        while missing or workers:
            while missing and len(workers) < (num_processes or num_cores()):
                worker = TraceWorker()
                workers[worker.connection] = worker
                worker.start(missing.popleft())
            for connection in wait(list(workers)):
                worker = workers[connection]
                base, outcome = worker.result()
                if missing and worker.is_alive:
                    worker.start(missing.popleft())
                else:
                    workers.pop(connection).stop()
                outcomes[base] = outcome
                if not isinstance(outcome, BreakevenError) and is_kept(base):
                    TRACES.write(trace_key(base), outcome)
                tell()
    finally:
        for worker in workers.values():
            worker.stop()

    def finished(case: StepCase) -> ScaledTrace | BreakevenError:
        outcome = outcomes[base_case(case)]
        return outcome if isinstance(outcome, BreakevenError) else as_asked(outcome, case)

    return {case: finished(case) for case in wanted}


def trace_key(case: StepCase) -> dict[str, str]:
    """Return the case, the package versions that build it, and the code that records it."""
    return {
        "case": msgspec.json.encode(case).decode(),
        **{name: installed_version(name) for name in _PACKAGES},
        "recorder": code_digest(*_RECORDING),
    }


class _Answer(msgspec.Struct, frozen=True):
    """The step of a case at two batch sizes, or why there is none."""

    traces: Traces | None = None
    message: str = ""
    hint: str | None = None


class TraceWorker:
    """One child process, which traces one case at a time.

    It is a separate program instead of a `multiprocessing` process, which would run its parent's
    script again. When its parent ends for any reason, the child reads the end of its pipe and ends.
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
        """Start to trace ``case``; ``connection`` becomes readable when it is done."""
        self._case = case
        self.connection.send_bytes(msgspec.msgpack.encode(case))

    def result(self) -> tuple[StepCase, _Outcome]:
        """Return the case and its traces, or an error; the process may have died."""
        case = self._case
        assert case is not None, "a case was started"
        try:
            answer = msgspec.msgpack.decode(self.connection.recv_bytes(), type=_Answer)
        except (EOFError, OSError):
            exit_code = self._process.wait()
            is_killed = exit_code < 0
            ending = f"was killed by signal {-exit_code}" if is_killed else "ended early"
            return case, WorkloadError(
                f"{case.workload!r} cannot be traced: its process {ending}",
                hint="memory may have run out: trace fewer cases at once" if is_killed else None,
            )
        if answer.traces is None:
            return case, WorkloadError(answer.message, hint=answer.hint)
        return case, answer.traces

    @property
    def is_alive(self) -> bool:
        """Whether the process can take another case."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process now, even while it works."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def serve(descriptor: int) -> None:
    """Trace each case that arrives at a descriptor and answer there, until the other end closes."""
    connection: Connection[Any, Any] = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # a user's file may print, but only answers may go to standard output
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
        try:
            answer = _Answer(traces=trace_base(case))
        except BreakevenError as error:
            answer = _Answer(message=error.message, hint=error.hint)
        with suppress(OSError):
            connection.send_bytes(msgspec.msgpack.encode(answer))
