"""The runner of a script: records its step, or times it, in a new process each time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from breakeven.capture import (
    FailureKind,
    Launcher,
    PlainRun,
    RunFailure,
    RunRequest,
    Target,
    TracedRun,
    script_error,
)
from breakeven.errors import BreakevenError
from breakeven.processor import cpu_name, has_half_hardware
from breakeven.progress import Progress
from breakeven.trace import Configuration, Phase, StepTrace

# A script that requires a GPU ends in one of these ways before it trains.
_REFUSALS = frozenset({FailureKind.EXCEPTION, FailureKind.EXIT, FailureKind.NO_STEP})
# Limit on recording the work between two steps.
_GAP_LIMIT_S = 60.0
# Types of torch that a CPU may emulate, and their precision.
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes that a run makes to the script; none by default.

    Args:
        arguments: ``sys.argv[1:]``; None for those of the target.
        old_batch_size: Batch size of the DataLoaders to change; 0 to change none.
        new_batch_size: Their batch size in this run.
        num_threads: torch's intra-op threads; 0 for its default.
    """

    arguments: tuple[str, ...] | None = None
    old_batch_size: int = 0
    new_batch_size: int = 0
    num_threads: int = 0


UNCHANGED = Change()


class Runner:
    """Runs one script, and keeps the findings of its runs.

    Args:
        launcher: Starts the processes.
        target: The script to run.
        time_limit_s: Limit of each run.
        progress: Progress callback, for stages and steps.
        num_threads: torch's intra-op threads; 0 for its default.
        budget_s: Seconds of sampling the unchanged step.
        keeps_compile: Let the script's own ``torch.compile`` take effect in timed runs.
    """

    def __init__(
        self,
        launcher: Launcher,
        target: Target,
        time_limit_s: float,
        progress: Progress,
        *,
        num_threads: int = 0,
        budget_s: float = 1.0,
        keeps_compile: bool = False,
    ) -> None:
        self._launcher = launcher
        self._progress = progress
        # The timed run on this CPU, updated by the findings of earlier runs.
        self.request = RunRequest(
            target=target,
            is_traced=False,
            time_limit_s=time_limit_s,
            configuration=Configuration(num_threads=num_threads),
            budget_s=budget_s,
            keeps_compile=keeps_compile,
        )
        # Threads of further recordings and timed runs; 0 for the script's own.
        self.recording_threads = 0
        self.timing_threads = 0
        # Whether further recordings take more steps: a few did not show the typical one.
        self.records_longer = False
        # Whether to record the script as if it were moved to a GPU, since it never uses one.
        self._is_moved = False
        self._last_s: float | None = None
        # Possible reason why the step is too slow for this CPU, from its recording.
        self._slow_because = ""

    def record(self, change: Change = UNCHANGED, at: str = "") -> TracedRun:
        """Record a step.

        Args:
            change: Changes to the script.
            at: The same in words, such as `` at batch size 64``.

        Raises:
            BreakevenError: If the script gives no step.
        """
        how = "as if it were moved to a GPU" if self._is_moved else "on a fake GPU"
        self._begin(f"recording a step {how}{at}")
        request = replace(
            self.request_of(change, self.recording_threads),
            is_traced=True,
            is_moved=self._is_moved,
            records_longer=self.records_longer,
        )
        answer = self._run(request)
        if isinstance(answer, RunFailure):
            raise self.error(request, answer, self._launcher.output)
        assert isinstance(answer, TracedRun)
        if not answer.trace.uses_device and not self._is_moved:
            self._is_moved = True
            return self.record(change, at)
        self.request = replace(self.request, backwards_per_step=answer.backwards_per_step)
        self._slow_because = _emulation(answer.trace)
        return answer

    def record_gap(self, num_updates: int) -> TracedRun | None:
        """Record the work after ``num_updates`` updates of a timed run.

        The result is None if that fails or takes too long.
        """
        self._begin("recording what lies between the steps")
        request = replace(
            self.request_of(UNCHANGED, self.timing_threads),
            is_traced=True,
            is_moved=self._is_moved,
            records_after=num_updates,
            time_limit_s=min(self.request.time_limit_s, _GAP_LIMIT_S),
        )
        answer = self._run(request)
        return answer if isinstance(answer, TracedRun) else None

    def time(self, *, watches_program: bool = True, tries_generated: bool = False) -> PlainRun:
        """Time the step on this CPU; a script that requires a GPU sees a fake one.

        If torch's default number of threads is in effect, then other numbers are tried too.

        Args:
            watches_program: Wait for the script's work between some of its steps.
            tries_generated: Also time generated code for the step, if it is short.

        Raises:
            BreakevenError: If the script gives no step.
        """
        generated = ", and as generated code" if tries_generated else ""
        self._begin(f"measuring the step on this CPU{generated}")
        request = replace(
            self.request,
            times_loader=True,
            tries_threads=not self.request.configuration.num_threads,
            watches_program=watches_program,
            tries_generated=tries_generated,
        )
        started_s = monotonic()
        found = run_on_cpu(self._launcher, request, self._progress.detail)
        self._last_s = max(monotonic() - started_s, request.budget_s)
        if isinstance(found.answer, RunFailure):
            raise self.error(request, found.answer, found.output)
        self.request = replace(self.request, has_cuda=found.has_cuda)
        return found.answer

    def time_at(
        self, change: Change, *, budget_s: float, tries_generated: bool = False
    ) -> PlainRun | None:
        """Time the step on this CPU at another batch size; None if the script fails there.

        Args:
            change: The batch size.
            budget_s: Seconds of sampling.
            tries_generated: Also time generated code for the step, if it is short.
        """
        generated = ", as generated code," if tries_generated else ""
        size = change.new_batch_size
        self._begin(f"measuring the step on this CPU{generated} at batch size {size}")
        request = self.request_of(change, self.timing_threads)
        return self._timed(replace(request, budget_s=budget_s, tries_generated=tries_generated))

    def time_under(self, configuration: Configuration) -> PlainRun | None:
        """Time the step on this CPU under other settings; None if the script fails with them."""
        changes = (f"{name}={value}" for name, value in configuration.changes.items())
        self._begin(f"measuring the step on this CPU with {', '.join(changes)}")
        return self._timed(replace(self.request, configuration=configuration))

    def time_on_gpu(self) -> PlainRun | None:
        """Time the step on this machine's GPU; None if the script fails or does not use it."""
        self._begin("measuring the step on this machine's GPU")
        return self._timed(replace(self.request, on_gpu=True, has_cuda=False))

    def request_of(self, change: Change, num_threads: int = 0) -> RunRequest:
        """Return the request of a timed run with a change.

        Args:
            change: Changes to the script.
            num_threads: Threads if the change has none.
        """
        request, threads = self.request, change.num_threads or num_threads
        if threads:
            configuration = replace(request.configuration, num_threads=threads)
            request = replace(request, configuration=configuration)
        if change.arguments is not None:
            arguments = tuple(map(os.fsencode, change.arguments))
            request = replace(request, target=replace(request.target, raw_arguments=arguments))
        return replace(
            request,
            loader_batch_size=change.old_batch_size,
            new_batch_size=change.new_batch_size,
        )

    def error(self, request: RunRequest, failure: RunFailure, output: str) -> BreakevenError:
        """Return the error that explains why a run gave no answer."""
        # Recording may slow a step, but timing does not.
        slow_because = "" if request.is_traced else self._slow_because
        writes = self._launcher.writes
        return script_error(
            failure, request.target, output, writes=writes, slow_because=slow_because
        )

    def _begin(self, stage: str) -> None:
        """Begin a stage; expect the duration of the previous one, since both start the same way."""
        self._progress.begin(stage, self._last_s)

    def _timed(self, request: RunRequest) -> PlainRun | None:
        answer = self._run(request)
        return answer if isinstance(answer, PlainRun) else None

    def _run(self, request: RunRequest) -> PlainRun | TracedRun | RunFailure:
        started_s = monotonic()
        answer = self._launcher.run(request, self._progress.detail)
        # A recording ends after few steps, but timing takes at least its budget.
        self._last_s = max(monotonic() - started_s, request.budget_s)
        return answer


class CpuRun(NamedTuple):
    """Result of a timed run, the script's output, and whether it saw a fake GPU."""

    answer: PlainRun | RunFailure
    output: str
    has_cuda: bool


def run_on_cpu(
    launcher: Launcher, request: RunRequest, tell: Callable[[str], None] = lambda _: None
) -> CpuRun:
    """Time the step once; if the script requires a GPU, again with a fake one.

    Args:
        launcher: Starts the process.
        request: A timed run. A run on this machine's GPU is not repeated.
        tell: Progress callback.
    """
    answer, output = launcher.run(request, tell), launcher.output
    assert not isinstance(answer, TracedRun), "asked for a timed run"
    may_insist = not request.has_cuda and not request.on_gpu
    if may_insist and isinstance(answer, RunFailure) and answer.kind in _REFUSALS:
        again = launcher.run(replace(request, has_cuda=True), tell)
        if isinstance(again, PlainRun):
            return CpuRun(again, launcher.output, has_cuda=True)
    return CpuRun(answer, output, request.has_cuda)


def _emulation(trace: StepTrace) -> str:
    """Return advice if a step trains in a 16-bit format that this CPU only emulates; else empty."""
    numel: Counter[str] = Counter()
    for op in trace.ops:
        for tensor in op.inputs if op.phase is Phase.OPTIMIZER else ():
            numel[tensor.dtype] += tensor.numel
    dtype = next((name for name, _ in numel.most_common(1)), "")
    precision = _PRECISIONS.get(dtype)
    if precision is None or has_half_hardware(precision):
        return ""
    return (
        f"{cpu_name()} emulates {precision}, far slower than fp32: let the script use fp32 when it "
        "trains on a CPU"
    )
