"""Where the timed runs of a sweep are made, once each, and how they are kept."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import structs

from breakeven.capture import Launcher, PlainRun, RunFailure, RunRequest
from breakeven.progress import Progress, SilentProgress
from breakeven.store import (
    MachineKey,
    RunKey,
    code_digest,
    forget_runs,
    machine_key,
    machine_lock,
    read_run,
    write_run,
)
from breakeven.studies.runner import (
    CpuRun,
    is_all_disturbed,
    is_worth_repeating,
    less_disturbed,
    run_on_cpu,
)

# Environment variables on which the time of a step depends.
# Of torch and its libraries, by how they begin. A script must find them as it would without Ray,
# which sets OMP_NUM_THREADS for its tasks, as no shell does.
TORCH_SETTINGS = (
    "ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_",
)  # fmt: skip
# And those of the machine, which change how fast a step is there, or which code the script finds.
MACHINE_SETTINGS = (
    "CUBLAS_", "CUDA_", "GLIBC_TUNABLES", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_", "NVIDIA_",
    "PYTHONPATH",
)  # fmt: skip
# Packages whose code decides what is measured.
_MEASURING = ("capture", "configure", "measure", "timing")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """One run that an engine has made.

    Args:
        request: What was asked for.
        answer: What came of it.
        output: The end of what the script printed.
        machine: Where it ran.
    """

    request: RunRequest
    answer: PlainRun | RunFailure
    output: str
    machine: MachineKey


class Engine(Protocol):
    """Makes timed runs, never two at once on one machine."""

    def machines(self) -> Sequence[MachineKey]:
        """Return the machines on which it may run, whose earlier measurements are as good."""
        ...

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, and yield them in the order in which they end.

        A run that fails is an answer. Whoever stops iterating ends the runs that are on.

        Args:
            requests: Timed runs.
        """
        ...


def time_at_point(
    launcher: Launcher, request: RunRequest, insisting: set[bytes], progress: Progress
) -> CpuRun:
    """Make a timed run; if other work disturbed it, once more, and the better one counts.

    Args:
        launcher: Makes the processes.
        request: The run.
        insisting: Scripts that refuse to run without a GPU: one run finds out, not all.
        progress: Progress callback, of steps.
    """
    path = request.target.raw_path
    if path in insisting and not request.on_gpu:
        request = structs.replace(request, has_cuda=True)
    first = run_on_cpu(launcher, request, progress.detail)
    if first.has_cuda:
        insisting.add(path)
    if isinstance(first.answer, PlainRun) and is_worth_repeating(first.answer):
        request = structs.replace(request, has_cuda=first.has_cuda)
        again = run_on_cpu(launcher, request, progress.detail)
        if isinstance(again.answer, PlainRun):
            is_better = less_disturbed(first.answer, again.answer) is again.answer
            return again if is_better else first
    return first


class LocalEngine:
    """Makes the runs on this machine, one after another.

    Args:
        launcher: Makes the processes.
        progress: Progress callback, of steps and of a wait for another breakeven process.
    """

    def __init__(self, launcher: Launcher, progress: Progress | None = None) -> None:
        self._launcher = launcher
        self._progress = progress or SilentProgress()
        self._insisting: set[bytes] = set()

    def machines(self) -> Sequence[MachineKey]:
        """Return this machine."""
        ready = self._launcher.ready()
        return (machine_key(processor=ready.processor, torch_version=ready.torch_version),)

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, in the order asked for."""
        (machine,) = self.machines()
        for request in requests:
            with machine_lock(self._note_wait):
                done = time_at_point(self._launcher, request, self._insisting, self._progress)
            yield EngineRun(
                request=request, answer=done.answer, output=done.output, machine=machine
            )

    def _note_wait(self) -> None:
        self._progress.detail("waiting for another breakeven process, which is measuring")


class RunCache:
    """Measures what was not measured before, and keeps each answer as soon as it is there.

    What was measured while other programs ran is kept until the sweep is complete, so that
    nothing is lost when it is broken off, but not beyond.

    Args:
        engine: Makes the runs.
        is_fresh: Measure also what was measured before.
    """

    def __init__(self, engine: Engine, *, is_fresh: bool = False) -> None:
        self._engine = engine
        self._is_fresh = is_fresh
        self._started_s = time.time()
        self._disturbed: set[RunKey] = set()
        self._answered: dict[RunRequest, EngineRun] = {}

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Yield the answer to each request, what is kept first and then as runs end.

        Args:
            requests: Timed runs, each of them once. The answers hold these very requests.
        """
        missing: list[RunRequest] = []
        machines = self._engine.machines()
        for request in requests:
            kept = self._find(request, machines)
            if kept is None:
                missing.append(request)
            else:
                yield kept
        for done in self._engine.measure(missing) if missing else ():
            self._answered[done.request] = done
            # Files are read when the run ends: one that was edited meanwhile is not what was timed.
            if isinstance(done.answer, PlainRun) and not any(
                _changed_s(source.path) > self._started_s for source in done.answer.sources
            ):
                key = _key(done.request, done.machine)
                sources = {source.path: source.sha256 for source in done.answer.sources}
                write_run(key, done.answer, sources)
                self._note_load(key, done.answer)
            yield done

    def complete(self) -> None:
        """Forget what was measured on a busy machine: the sweep has its answer."""
        forget_runs(self._disturbed)

    def _find(self, request: RunRequest, machines: Sequence[MachineKey]) -> EngineRun | None:
        if request in self._answered or self._is_fresh:
            return self._answered.get(request)
        for machine in machines:
            key = _key(request, machine)
            run = read_run(key, PlainRun)
            if run is not None:
                self._note_load(key, run)
                return EngineRun(request=request, answer=run, output="", machine=machine)
        return None

    def _note_load(self, key: RunKey, run: PlainRun) -> None:
        """Note whether a run that is kept now was disturbed."""
        if is_all_disturbed(run):
            self._disturbed.add(key)
        else:
            self._disturbed.discard(key)


def _changed_s(path: str) -> float:
    """Return when a file changed last, in seconds since the epoch; never if there is none."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _key(request: RunRequest, machine: MachineKey) -> RunKey:
    """Return everything that a run depends on; how long it may take at most is not of it."""
    variables = sorted(
        os.fsencode(f"{name}={value}")
        for name, value in os.environ.items()
        if name.startswith((*TORCH_SETTINGS, *MACHINE_SETTINGS))
    )
    # Another virtual environment may hold other versions of what the script imports.
    variables.append(os.fsencode(sys.prefix))
    asked = structs.replace(request, time_limit_s=0.0)
    return RunKey(
        machine=machine,
        request=msgspec.json.encode(asked, order="sorted").decode(),
        folder=os.fsencode(Path.cwd()).hex(),
        environment=hashlib.sha256(b"\0".join(variables)).hexdigest(),
        measuring=code_digest(*_MEASURING),
    )
