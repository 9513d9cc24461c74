"""Where the runs of a sweep are measured, once each, and how they are kept."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from breakeven.capture import Launcher, PlainRun, RunFailure, RunRequest
from breakeven.progress import Progress, SilentProgress
from breakeven.session import REFUSALS, is_all_disturbed, is_worth_repeating, less_disturbed
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
    """Makes plain runs, never two at once on one machine."""

    def machines(self) -> Sequence[MachineKey]:
        """Return the machines on which it may run, whose earlier measurements are as good."""
        ...

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, and yield them in the order in which they end.

        A run that fails is an answer. Whoever stops iterating ends the runs that are on.

        Args:
            requests: Plain runs; none is traced.
        """
        ...


class LocalEngine:
    """Makes the runs on this machine, one after another.

    Args:
        launcher: Makes the processes.
        progress: Progress callback, of steps and of a wait for another breakeven process.
    """

    def __init__(self, launcher: Launcher, progress: Progress | None = None) -> None:
        self._launcher = launcher
        self._progress = progress or SilentProgress()

    def machines(self) -> Sequence[MachineKey]:
        """Return this machine."""
        ready = self._launcher.ready()
        return (machine_key(processor=ready.processor, torch_version=ready.torch_version),)

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, in the order asked for."""
        (machine,) = self.machines()
        for request in requests:
            with machine_lock(self._note_wait):
                answer = self._launcher.run(request, self._progress.detail)
            assert isinstance(answer, PlainRun | RunFailure), "asked for plain runs alone"
            yield EngineRun(
                request=request, answer=answer, output=self._launcher.output, machine=machine
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
        # Once a script has refused to run without a GPU, it always sees one;
        # None until a run has shown.
        self._has_cuda: bool | None = None
        self._disturbed: set[RunKey] = set()
        self._answered: dict[RunRequest, EngineRun] = {}

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Yield the answer to each request, what is kept first and then as runs end.

        Args:
            requests: Plain runs, each of them once. The answers hold these very requests.
        """
        missing: list[RunRequest] = []
        machines = self._engine.machines()
        for request in requests:
            kept = self._find(request, machines)
            if kept is None:
                missing.append(request)
            else:
                yield kept
        # Whether the script runs without a GPU is found out by one run, not by all.
        num_first = 1 if self._has_cuda is None else 0
        for some in (missing[:num_first], missing[num_first:]):
            for done in self._measure(some):
                self._answered[done.request] = done
                yield done

    def complete(self) -> None:
        """Forget what was measured on a busy machine: the sweep has its answer."""
        forget_runs(self._disturbed)

    def _find(self, request: RunRequest, machines: Sequence[MachineKey]) -> EngineRun | None:
        if request in self._answered:
            return self._answered[request]
        if self._is_fresh:
            return None
        for machine in machines:
            for sent in (request, replace(request, has_cuda=True)):
                key = _key(sent, machine)
                run = read_run(key, PlainRun)
                if run is not None:
                    self._note_load(key, run)
                    return EngineRun(request=request, answer=run, output="", machine=machine)
        return None

    def _measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make the runs, and once more those that were disturbed or refused to run."""
        first_tries: dict[RunRequest, EngineRun] = {}
        for done in self._run({request: self._sent(request) for request in requests}):
            if self._is_retried(done):
                first_tries[done.request] = done
            else:
                self._note_refusal(done, has_cuda=False)
                yield done
        repeats = {
            request: replace(request, has_cuda=True) if _has_failed(done) else self._sent(request)
            for request, done in first_tries.items()
        }
        for again in self._run(repeats):
            first = first_tries[again.request]
            if _has_failed(first) and not _has_failed(again):
                self._note_refusal(again, has_cuda=True)
            better = _better(first, again)
            if better is first and isinstance(first.answer, PlainRun):
                # The second try has replaced it.
                self._keep(repeats[again.request], first.answer, first.machine)
            yield better

    def _run(self, sent: Mapping[RunRequest, RunRequest]) -> Iterator[EngineRun]:
        """Make the runs that are sent for the requests, and keep each at once."""
        asked = {each: request for request, each in sent.items()}
        if not asked:
            return
        for done in self._engine.measure(tuple(asked)):
            if isinstance(done.answer, PlainRun):
                self._keep(done.request, done.answer, done.machine)
            yield dataclasses.replace(done, request=asked[done.request])

    def _sent(self, request: RunRequest) -> RunRequest:
        needs_cuda = bool(self._has_cuda) and not request.on_gpu
        return replace(request, has_cuda=True) if needs_cuda else request

    def _is_retried(self, done: EngineRun) -> bool:
        if isinstance(done.answer, PlainRun):
            return is_worth_repeating(done.answer)
        may_refuse = not self._has_cuda and not done.request.on_gpu
        return may_refuse and done.answer.kind in REFUSALS

    def _note_refusal(self, done: EngineRun, *, has_cuda: bool) -> None:
        if isinstance(done.answer, PlainRun) and not done.request.on_gpu:
            self._has_cuda = has_cuda or bool(self._has_cuda)

    def _keep(self, request: RunRequest, run: PlainRun, machine: MachineKey) -> None:
        # Files are read when the run ends: one that was edited meanwhile is not what was timed.
        if any(_changed_s(source.path) > self._started_s for source in run.sources):
            return
        key = _key(request, machine)
        write_run(key, run, {source.path: source.sha256 for source in run.sources})
        self._note_load(key, run)

    def _note_load(self, key: RunKey, run: PlainRun) -> None:
        """Note whether a run that is kept now was disturbed."""
        if is_all_disturbed(run):
            self._disturbed.add(key)
        else:
            self._disturbed.discard(key)


def _has_failed(done: EngineRun) -> bool:
    return isinstance(done.answer, RunFailure)


def _better(first: EngineRun, again: EngineRun) -> EngineRun:
    """Return the faster of two tries, or the one that succeeded; the first of two failures."""
    if isinstance(again.answer, RunFailure):
        return first
    if isinstance(first.answer, RunFailure):
        return again
    return first if less_disturbed(first.answer, again.answer) is first.answer else again


def _changed_s(path: str) -> float:
    """Return when a file changed last, in seconds since the epoch; never where there is none."""
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
    return RunKey(
        machine=machine,
        request=msgspec.json.encode(replace(request, time_limit_s=0.0), order="sorted").decode(),
        folder=os.fsencode(Path.cwd()).hex(),
        environment=hashlib.sha256(b"\0".join(variables)).hexdigest(),
        measuring=code_digest(*_MEASURING),
    )
