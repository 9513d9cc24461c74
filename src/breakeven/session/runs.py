"""The runs of a session, each in its own process, each failure an error; and when none is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

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
from breakeven.memory import physical_bytes
from breakeven.processor import cpu_name, has_half_hardware
from breakeven.progress import Progress
from breakeven.trace import Configuration, Phase, StepTrace

# A script that insists on a GPU says so by one of these before it trains.
REFUSALS = frozenset({FailureKind.EXCEPTION, FailureKind.EXIT, FailureKind.NO_STEP})

# To record what lies between two steps takes as long at most.
_GAP_LIMIT_S = 60.0
# Steps that took longer in all are not measured a second time.
_REPEATABLE_NS = 3_000_000_000

# What is so many times as fast is faster than runs differ by.
CLEARLY_FASTER = 1.1

# Sizes whose steps are expected to take longer are not measured: the answer should come in
# seconds, and a step that long has left the region where launches decide.
LONGEST_STEP_NS = 1.0e9
# How far a CPU's curve goes on beyond the sizes that were measured: its error is known so far.
BEYOND_MEASURED = 16
# The estimate is rough, and a machine that swaps is not only slow for us.
_MEMORY_FRACTION = 0.5
# What CPUs may emulate: names of torch's types, and of the arithmetic.
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}
# Where Linux keeps the limit of a container, of which only one version of cgroups is in use.
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class Runs:
    """Runs one target in different ways.

    Args:
        launcher: Makes the processes.
        target: What to run.
        time_limit_s: Limit of each run.
        progress: Progress callback, of stages and steps.
        num_threads: torch's intra-op threads; 0 for its own default.
        budget_s: How long to take samples of the step as it is.
        keeps_compile: Let the script's own ``torch.compile`` do its work when the step is timed.
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
        self._target = target
        self._request = RunRequest(
            target=target,
            is_traced=False,
            time_limit_s=time_limit_s,
            configuration=Configuration(num_threads=num_threads),
            budget_s=budget_s,
            keeps_compile=keeps_compile,
        )
        self._last_s: float | None = None
        # torch's threads where nothing else is asked for; 0 until they are known.
        self._num_threads = 0
        # What further runs have instead; 0 for the same.
        self._plain_threads = 0
        self._traced_threads = 0
        self._records_longer = False
        # What may make the step too slow for this CPU, as far as its recording shows.
        self._slow_because = ""

    @property
    def request(self) -> RunRequest:
        """Return how the target is run on this CPU, with what its runs have shown so far."""
        return replace(self._request, is_moved=False)

    def trace(self, *, loader_batch_size: int = 0, new_batch_size: int = 0) -> TracedRun:
        """Record a step, with another batch size of the DataLoader where one is given.

        A script that turns out never to use a GPU is recorded again, as if it had been moved.
        """
        of_size = f" at batch size {new_batch_size}" if new_batch_size else ""
        how = "as if it were moved to a GPU" if self._request.is_moved else "on a pretended GPU"
        self._begin(f"recording a step {how}{of_size}")
        request = replace(
            self._with_threads(self._traced_threads),
            is_traced=True,
            records_longer=self._records_longer,
            loader_batch_size=loader_batch_size,
            new_batch_size=new_batch_size,
        )
        answer = self._run(request)
        if not isinstance(answer, TracedRun):
            raise self._error(request, answer, self._launcher.output)
        if not answer.trace.uses_device and not self._request.is_moved:
            self._request = replace(self._request, is_moved=True)
            return self.trace(loader_batch_size=loader_batch_size, new_batch_size=new_batch_size)
        self._request = replace(
            self._request,
            backwards_per_step=answer.backwards_per_step,
            num_skipped_steps=answer.num_host_steps,
        )
        self._slow_because = _emulation(answer.trace)
        if _is_emulated(answer.trace):
            self._last_s = None  # it was recorded in float32, which is far faster
        return answer

    def trace_gap(self, num_updates: int) -> TracedRun | None:
        """Record what follows so many updates; None where that fails or takes too long.

        Args:
            num_updates: How many, of those that a plain run counts.
        """
        self._begin("recording what lies between the steps")
        request = replace(
            self._with_threads(self._plain_threads),
            is_traced=True,
            records_after=self._request.num_skipped_steps + num_updates,
            time_limit_s=min(self._request.time_limit_s, _GAP_LIMIT_S),
        )
        answer = self._run(request)
        return answer if isinstance(answer, TracedRun) else None

    def use_threads(self, num_threads: int, *, for_traces: bool) -> None:
        """Let all further plain runs on this CPU have so many threads.

        Args:
            num_threads: How many.
            for_traces: Let recordings have them too; those that are put together must all do.
        """
        if num_threads != self._num_threads:
            self._plain_threads = num_threads
            self._traced_threads = num_threads if for_traces else self._traced_threads

    def record_longer(self) -> None:
        """Let all further recordings take more steps: a few did not show the typical one."""
        self._records_longer = True

    def measure(self, *, watches_program: bool = True, tries_generated: bool = False) -> PlainRun:
        """Time the step on this CPU; a script that insists on a GPU sees one.

        Where torch's own number of threads is in effect, others are tried as well.

        Args:
            watches_program: Wait for what the script does between some of its steps.
            tries_generated: Time generated code for the step too, where it is short.
        """
        generated = ", and as generated code" if tries_generated else ""
        self._begin(f"measuring the step on this CPU{generated}")
        tries_threads = not self._request.configuration.num_threads
        request = replace(
            self._request,
            times_loader=True,
            tries_threads=tries_threads,
            watches_program=watches_program,
            tries_generated=tries_generated,
        )
        answer = self._run(request)
        output = self._launcher.output
        if isinstance(answer, RunFailure) and answer.kind in REFUSALS:
            # The traced run got through, so the GPU that it had makes the difference.
            again = self._run(replace(request, has_cuda=True))
            if isinstance(again, PlainRun):
                self._request = replace(self._request, has_cuda=True)
                answer = again
        if not isinstance(answer, PlainRun):
            raise self._error(self._request, answer, output)
        self._num_threads = answer.num_threads
        return answer

    def measure_on_gpu(self) -> PlainRun | None:
        """Time the step on this machine's GPU; None where the script fails on it, or leaves it."""
        self._begin("measuring the step on this machine's GPU")
        return self._plain(replace(self._request, on_gpu=True, has_cuda=False))

    def measure_under(self, configuration: Configuration) -> PlainRun | None:
        """Time the step on this CPU under other settings; None where the script fails then."""
        changes = (f"{name}={value}" for name, value in configuration.changes.items())
        self._begin(f"measuring the step on this CPU with {', '.join(changes)}")
        return self._plain(replace(self._request, configuration=configuration))

    def measure_at(
        self,
        new_batch_size: int,
        *,
        loader_batch_size: int,
        budget_s: float,
        tries_generated: bool = False,
    ) -> PlainRun | None:
        """Time the step on this CPU at another batch size; None where the script fails at it.

        Args:
            new_batch_size: That size.
            loader_batch_size: The one that the script sets.
            budget_s: How long to take samples.
            tries_generated: Time generated code for the step too, where it is short.
        """
        generated = ", as generated code," if tries_generated else ""
        self._begin(f"measuring the step on this CPU{generated} at batch size {new_batch_size}")
        return self._plain(
            replace(
                self._with_threads(self._plain_threads),
                budget_s=budget_s,
                loader_batch_size=loader_batch_size,
                new_batch_size=new_batch_size,
                tries_generated=tries_generated,
            )
        )

    def _plain(self, request: RunRequest) -> PlainRun | None:
        answer = self._run(request)
        return answer if isinstance(answer, PlainRun) else None

    def _with_threads(self, num_threads: int) -> RunRequest:
        if not num_threads:
            return self._request
        configuration = replace(self._request.configuration, num_threads=num_threads)
        return replace(self._request, configuration=configuration)

    def _begin(self, stage: str) -> None:
        """Begin the stage, which takes about as long as the one before: it starts the same way."""
        self._progress.begin(stage, self._last_s)

    def _run(self, request: RunRequest) -> PlainRun | TracedRun | RunFailure:
        started_s = monotonic()
        answer = self._launcher.run(request, self._progress.detail)
        # Recording ends after few steps, but timing takes its budget at least.
        self._last_s = max(monotonic() - started_s, request.budget_s)
        return answer

    def _error(
        self, request: RunRequest, answer: PlainRun | TracedRun | RunFailure, output: str
    ) -> Exception:
        assert isinstance(answer, RunFailure)
        # Recording may slow a step, but timing does not.
        slow_because = "" if request.is_traced else self._slow_because
        return script_error(
            answer,
            request.target,
            output,
            writes=self._launcher.writes,
            slow_because=slow_because,
        )


def _is_emulated(trace: StepTrace) -> bool:
    """Return whether this CPU only emulates a format of what a step computes with."""
    dtypes = {tensor.dtype for op in trace.ops for tensor in op.inputs}
    return any(
        dtype in dtypes and not has_half_hardware(name) for dtype, name in _PRECISIONS.items()
    )


def _emulation(trace: StepTrace) -> str:
    """Return what to do about a step in a 16-bit format that this CPU only emulates, if it is."""
    numel: Counter[str] = Counter()
    for op in trace.ops:
        for tensor in op.inputs if op.phase is Phase.OPTIMIZER else ():
            numel[tensor.dtype] += tensor.numel
    dtype = next((name for name, _ in numel.most_common(1)), "")
    precision = _PRECISIONS.get(dtype)
    if precision is None or has_half_hardware(precision):
        return ""
    return (
        f"{cpu_name()} emulates {precision}, far slower than fp32: let the script keep fp32 where "
        "it trains on a CPU"
    )


def is_all_disturbed(run: PlainRun) -> bool:
    """Return whether other work disturbed the step on every number of threads."""
    measurements = (run.measurement, *(trial.measurement for trial in run.trials))
    return all(measurement.is_disturbed for measurement in measurements)


def is_worth_repeating(run: PlainRun) -> bool:
    """Return whether other work disturbed a run that is short enough to be made again."""
    return is_all_disturbed(run) and sum(run.measurement.samples_ns) < _REPEATABLE_NS


def less_disturbed(run: PlainRun, again: PlainRun) -> PlainRun:
    """Return the run that was disturbed less, or the faster: other work only ever adds time."""
    longest_ns = CLEARLY_FASTER * min(run.measurement.median_ns, again.measurement.median_ns)
    return min(
        (each for each in (run, again) if each.measurement.median_ns <= longest_ns),
        key=lambda each: (is_all_disturbed(each), each.measurement.median_ns),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSize:
    """A size that was not measured, and why."""

    size: int
    because: str


def second_size(batch_size: int, step_ns: float) -> int:
    """Return at which batch size a step is recorded too, so that others follow from both.

    As long as a step is short, a larger one is as soon recorded. Never with one sample, where there
    are more: torch takes views and other operators there, in attention for one.

    Args:
        batch_size: At which it was recorded.
        step_ns: How long it takes there.
    """
    is_short = step_ns < LONGEST_STEP_NS
    return batch_size * 2 if is_short or batch_size < 4 else batch_size // 2


def why_not_measured(
    expected_ns: float, expected_bytes: float, *, longest_step_ns: float = LONGEST_STEP_NS
) -> str | None:
    """Return why a step of that size is better not measured here; None where it may be.

    Args:
        expected_ns: How long the step is expected to take.
        expected_bytes: Memory that its process is expected to need.
        longest_step_ns: Limit of the former.
    """
    if expected_ns > longest_step_ns:
        return "a step would take too long"
    if expected_bytes > _MEMORY_FRACTION * _memory_bytes():
        return "memory is short"
    return None


def _memory_bytes() -> int:
    """Return this machine's memory, or the part of it that a container may use."""
    return min(
        [physical_bytes(), *(limit for limit in map(_limit_bytes, _CONTAINER_LIMITS) if limit)]
    )


def _limit_bytes(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
