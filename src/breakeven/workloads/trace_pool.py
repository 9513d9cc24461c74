"""Trace many cases in parallel, each once, and remember them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any

import msgspec

from breakeven.errors import BreakevenError
from breakeven.processor import num_cores
from breakeven.store import code_digest, installed_version, read_traces, write_traces
from breakeven.trace import ScaledTrace, StepCase, StepTrace
from breakeven.workloads.case_variants import as_asked, base_case
from breakeven.workloads.spec import WorkloadKind, parse_workload
from breakeven.workloads.trace_worker import TraceWorker

_Traces = tuple[StepTrace, StepTrace]
_Outcome = _Traces | BreakevenError


def trace_cases(
    cases: Iterable[StepCase],
    *,
    num_processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[StepCase, ScaledTrace | BreakevenError]:
    """Return the trace of each distinct case, or why there is none.

    Traces are kept on disk, but for those of the user's own files, whose code may change. Cases
    that differ only in TF32, in how the batch is copied, or in timing the backward phase alone
    share one. Models are built in child processes, which use one thread each.

    Args:
        cases: What to trace.
        num_processes: Processes at once; by default as many as this process has cores.
        progress: Called with the number of traces known and of those wanted, first before any is
            made.
    """
    wanted = list(dict.fromkeys(cases))
    outcomes: dict[StepCase, _Outcome] = {}
    missing: list[StepCase] = []
    bases = list(dict.fromkeys(map(base_case, wanted)))
    for base in bases:
        try:
            stored = read_traces(trace_key(base)) if _is_kept(base) else None
        except BreakevenError as error:
            outcomes[base] = error
            continue
        if stored is None:
            missing.append(base)
        else:
            outcomes[base] = stored
    if progress is not None:
        progress(len(outcomes), len(bases))
    for base, outcome in _trace_all(missing, num_processes or num_cores()):
        outcomes[base] = outcome
        if not isinstance(outcome, BreakevenError) and _is_kept(base):
            write_traces(trace_key(base), outcome)
        if progress is not None:
            progress(len(outcomes), len(bases))
    return {case: _finished(outcomes[base_case(case)], case) for case in wanted}


def _is_kept(case: StepCase) -> bool:
    return parse_workload(case.workload).kind is not WorkloadKind.FILE


def _finished(outcome: _Outcome, case: StepCase) -> ScaledTrace | BreakevenError:
    if isinstance(outcome, BreakevenError):
        return outcome
    try:
        return as_asked(outcome, case)
    except BreakevenError as error:
        return error


def _trace_all(cases: list[StepCase], num_processes: int) -> Iterator[tuple[StepCase, _Outcome]]:
    """Yield each case with its outcome as it is known; no process outlives the iteration."""
    waiting = deque(cases)
    workers: dict[Any, TraceWorker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < num_processes:
                worker = TraceWorker()
                workers[worker.connection] = worker
                worker.start(waiting.popleft())
            for connection in wait(list(workers)):
                worker = workers[connection]
                case, outcome = worker.result()
                if waiting and worker.is_alive:
                    worker.start(waiting.popleft())
                else:
                    del workers[connection]
                    worker.stop()
                yield case, outcome
    finally:
        for worker in workers.values():
            worker.stop()


_PACKAGES = ("breakeven", "torch", "torchvision", "transformers")
# Packages whose code decides what is recorded of a workload.
_RECORDING = ("capture", "workloads", "trace")


def trace_key(case: StepCase) -> dict[str, str]:
    """Return the case, the versions of the packages that build it, and the code that records it."""
    return {
        "case": msgspec.json.encode(case).decode(),
        **{name: installed_version(name) for name in _PACKAGES},
        "recorder": code_digest(*_RECORDING),
    }
