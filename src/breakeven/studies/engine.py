"""Engines that make the timed runs of a sweep, and the cache of their answers."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    machine_key,
    machine_lock,
    read_run,
    write_run,
)
from breakeven.studies.runner import CpuRun, run_on_cpu

# Environment variables that affect the time of a step.
# Prefixes of torch and its libraries. A script must find their values as without Ray, which sets
# OMP_NUM_THREADS for its tasks, unlike a shell.
TORCH_SETTINGS = (
    "ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_",
)  # fmt: skip
# Prefixes of the machine, which affect its speed or the code that the script finds.
MACHINE_SETTINGS = (
    "CUBLAS_", "CUDA_", "GLIBC_TUNABLES", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_", "NVIDIA_",
    "PYTHONPATH",
)  # fmt: skip
# Packages whose code affects measurements.
_MEASURING = ("capture", "configure", "measure", "timing")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """One run of an engine.

    Args:
        request: The requested run.
        answer: Its result.
        output: The end of the script's output.
        machine: The machine that ran it.
    """

    request: RunRequest
    answer: PlainRun | RunFailure
    output: str
    machine: MachineKey


class Engine(Protocol):
    """Makes timed runs, never two at once on one machine."""

    def machines(self) -> Sequence[MachineKey]:
        """Return the machines that it may use; stored measurements of these are reused."""
        ...

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, and yield the runs in the order in which they end.

        A failed run is an answer too. If the caller stops iterating, active runs are ended.

        Args:
            requests: Timed runs.
        """
        ...


def time_at_point(
    launcher: Launcher, request: RunRequest, insisting: set[bytes], progress: Progress
) -> CpuRun:
    """Make a timed run.

    Args:
        launcher: Starts the processes.
        request: The run.
        insisting: Scripts that refuse to run without a GPU; the first run adds its script.
        progress: Progress callback, for steps.
    """
    path = request.target.raw_path
    if path in insisting and not request.on_gpu:
        request = structs.replace(request, has_cuda=True)
    done = run_on_cpu(launcher, request, progress.detail)
    if done.has_cuda:
        insisting.add(path)
    return done


class LocalEngine:
    """Makes the runs on this machine, one after another.

    Args:
        launcher: Starts the processes.
        progress: Progress callback, for steps and for a wait for another breakeven process.
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
        """Make each run once, in the order of the requests."""
        (machine,) = self.machines()
        waiting = "waiting for another breakeven process, which is measuring"
        for request in requests:
            with machine_lock(partial(self._progress.detail, waiting)):
                done = time_at_point(self._launcher, request, self._insisting, self._progress)
            yield EngineRun(
                request=request, answer=done.answer, output=done.output, machine=machine
            )


class RunCache:
    """Makes runs that are not stored yet, and stores each answer at once.

    Measurements of a busy machine are not stored.

    Args:
        engine: Makes the runs.
        is_fresh: Measure again even if an answer is stored.
    """

    def __init__(self, engine: Engine, *, is_fresh: bool = False) -> None:
        self._engine = engine
        self._is_fresh = is_fresh
        self._started_s = time.time()
        self._answered: dict[RunRequest, EngineRun] = {}

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Yield the answer to each request: stored answers first, others as runs end.

        Args:
            requests: Timed runs, without repeats. The answers hold the same request objects.
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
            if isinstance(done.answer, PlainRun) and self._may_store(done.answer):
                sources = {source.path: source.sha256 for source in done.answer.sources}
                write_run(_key(done.request, done.machine), done.answer, sources)
            yield done

    def _find(self, request: RunRequest, machines: Sequence[MachineKey]) -> EngineRun | None:
        if request in self._answered or self._is_fresh:
            return self._answered.get(request)
        for machine in machines:
            run = read_run(_key(request, machine), PlainRun)
            if run is not None:
                return EngineRun(request=request, answer=run, output="", machine=machine)
        return None

    def _may_store(self, run: PlainRun) -> bool:
        """Return whether other work left a run alone, on some number of threads at least."""
        measurements = (run.measurement, *(trial.measurement for trial in run.trials))
        is_calm = not all(measurement.is_disturbed for measurement in measurements)
        # Sources are read when the run ends: do not store a run whose file was edited since.
        return is_calm and all(_changed_s(one.path) <= self._started_s for one in run.sources)


def _changed_s(path: str) -> float:
    """Return when a file last changed, in seconds since the epoch; 0 if it does not exist."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _key(request: RunRequest, machine: MachineKey) -> RunKey:
    """Return everything that a run depends on; its time limit does not count."""
    variables = sorted(
        os.fsencode(f"{name}={value}")
        for name, value in os.environ.items()
        if name.startswith((*TORCH_SETTINGS, *MACHINE_SETTINGS))
    )
    # Another virtual environment may have other versions of the script's imports.
    variables.append(os.fsencode(sys.prefix))
    asked = structs.replace(request, time_limit_s=0.0)
    return RunKey(
        machine=machine,
        request=msgspec.json.encode(asked, order="sorted").decode(),
        folder=os.fsencode(Path.cwd()).hex(),
        environment=hashlib.sha256(b"\0".join(variables)).hexdigest(),
        measuring=code_digest(*_MEASURING),
    )
