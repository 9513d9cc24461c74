"""Where the runs of a sweep are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from breakeven.capture import Launcher, PlainRun, RunFailure, RunRequest
from breakeven.progress import Progress, SilentProgress
from breakeven.store import MachineKey, machine_key, machine_lock

# Environment variables on which the time of a step depends.
# Of torch and its libraries, by how they begin. A script must find them as it would without Ray,
# which sets OMP_NUM_THREADS for its tasks, as no shell does.
TORCH_SETTINGS = (
    "ATEN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH_",
)
# And those of the machine, which change how fast a step is there, or which code the script finds.
MACHINE_SETTINGS = (
    "CUBLAS_",
    "CUDA_",
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_",
    "NVIDIA_",
    "PYTHONPATH",
)


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
            with machine_lock(self._tell_wait):
                answer = self._launcher.run(request, self._progress.detail)
            assert isinstance(answer, PlainRun | RunFailure), "asked for plain runs alone"
            yield EngineRun(
                request=request, answer=answer, output=self._launcher.output, machine=machine
            )

    def _tell_wait(self) -> None:
        self._progress.detail("waiting for another breakeven process, which is measuring")
