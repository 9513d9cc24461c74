"""Timing of the steps of an unmodified training loop."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from msgspec.structs import replace

from breakeven.capture.gpus import gpu_here, gpu_name, gpu_peak_bytes, gpu_uuid
from breakeven.capture.messages import LoaderUse, PlainRun, RunRequest
from breakeven.capture.pretend.cuda_graphs import GRAPHS_RUN_EAGERLY
from breakeven.capture.pretend.redirect import COMPILE_IGNORED
from breakeven.capture.sessions.between_steps import StackSamples, other_work_of
from breakeven.capture.sessions.generated_trial import LONGEST_STEP_NS, GeneratedTrial
from breakeven.capture.sessions.interleaved_runs import TurnClock, Turns
from breakeven.capture.sessions.run_facts import user_sources
from breakeven.capture.sessions.session import (
    BackwardCall,
    BackwardCalls,
    PhaseWatch,
    UpdateSession,
)
from breakeven.capture.sessions.thread_trials import LONGEST_NS, ThreadTrials
from breakeven.capture.sessions.trained import Trained
from breakeven.errors import Caveat
from breakeven.measure import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    PATIENCE,
    EnergyMeter,
    GpuClock,
    HostClock,
    OtherLoad,
    PageFaults,
    PoolWaits,
    StepTimer,
)
from breakeven.memory import peak_bytes
from breakeven.processor import cpu_name, cpu_quota, has_half_hardware
from breakeven.settings import configured
from breakeven.timing import BUSY_BESIDE, BUSY_FRACTION, BUSY_MACHINE, EMULATED_ON_CPU, TurnKind
from breakeven.units import format_percent

# Wait for work between some steps for this multiple of the sampling time, in the run that judges a
# program.
_RARE_PATIENCE = 6.0
# Share of the sampling time for each other number of threads.
_TRIAL_SHARE = 0.4
# Steps per sample on a GPU: enough for the launches of one step to overlap with the kernels of the
# previous step.
_GPU_STEPS_PER_SAMPLE = 10
# Each turn gives one ratio, and a turn may be a single step. On a busy machine the mean of 40 is
# accurate to some 3 %, hardly less than the difference between processes. Runs of several threads
# differ by more, so fewer steps suffice. A long turn holds thousands of short steps.
_LEAST_STEPS = {TurnKind.NONE: LEAST_SAMPLES, TurnKind.SHORT: 40, TurnKind.LONG: 16}
_PATIENCE = {TurnKind.NONE: PATIENCE, TurnKind.SHORT: 8.0, TurnKind.LONG: 3.5}
_MOST_STEPS = {TurnKind.NONE: MOST_SAMPLES, TurnKind.SHORT: MOST_SAMPLES, TurnKind.LONG: 50_000}
_MAX_WARNINGS = 5
_MAX_WARNING_CHARACTERS = 300

_NEEDS_CUDA = Caveat(
    code="needs-cuda",
    message="the script refuses to run without a GPU; the CPU ran its CUDA calls instead",
)


class FeedingLoader:
    """The DataLoader that feeds most steps; ``uses`` holds its use by each step."""

    def __init__(self) -> None:
        self.uses: list[LoaderUse] = []
        # Per batch without training: time from batch to batch, and processor time of this process.
        self.alone_ns = self.taking_ns = 0.0

    @property
    def has_workers(self) -> bool:
        """Return whether worker processes load; their processes do not count as other load."""
        return any(use.num_workers for use in self.uses)

    def use(self, num_steps: int) -> LoaderUse | None:
        """Return the loader's use per step; None without a loader.

        Args:
            num_steps: Number of steps, including those that took no batch.
        """
        if not self.uses:
            return None
        # The first fetch starts workers and fills caches.
        waits = [use.wait_ns for use in self.uses[1:] or self.uses]
        alike = Counter(replace(use, wait_ns=0.0) for use in self.uses)
        (typical, count) = alike.most_common(1)[0]
        return replace(
            typical,
            wait_ns=float(median(waits)),
            alone_ns=self.alone_ns,
            taking_ns=self.taking_ns,
            fetching_fraction=min(1.0, count / max(num_steps, 1)),
        )


class PlainSession(UpdateSession):
    """Times the steps of a training loop, and adds only the step boundary.

    A run has up to three parts, in this order: timed steps, steps on other numbers of threads,
    steps for generated code. Each part starts the next.

    Args:
        request: The run, with the loaders to change and the sampling time.
        on_done: Called from the training loop when the samples suffice.
        on_step: As in every session.
        turns: Turns of a run that alternates with another; None otherwise.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None, turns: Turns | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            request, on_done, on_step, around_fetch=lambda _: self._generated.fetching()
        )
        # torch's type of the GPU; empty on the CPU.
        self._gpu = gpu_here() if request.on_gpu else ""
        self._turns = turns
        self._end_step = self._time
        self._num_backwards = 0
        self._feeding = FeedingLoader()
        self._warnings: dict[str, None] = {}
        self._is_compiled = False
        self._trained = Trained(self._optimizers, self._gpu)
        self._load: OtherLoad | None = None
        self._meter: EnergyMeter | None = None
        self._page_faults = PageFaults()
        self._host_clock = HostClock()
        clock = GpuClock(self._gpu) if self._gpu else self._host_clock
        self._clock = TurnClock(clock, turns) if turns else clock
        self._started_ns = self._clock.now_ns()
        # The clock leaves the calling thread's waits out; short turns have no other thread.
        has_pool = not self._gpu and request.turns is not TurnKind.SHORT
        self._pool = PoolWaits() if has_pool else None
        self._timer = StepTimer(
            self._clock,
            request.budget_s,
            _GPU_STEPS_PER_SAMPLE if self._gpu else 1,
            least_samples=_LEAST_STEPS[request.turns],
            patience=_PATIENCE[request.turns],
            most_samples=_MOST_STEPS[request.turns],
            pool=self._pool,
            rare_patience=_RARE_PATIENCE if request.watches_program else 0.0,
        )
        if turns:  # further pairs come at other moments
            self._timer.stop_waiting()
        # A device runs on after the host's call, and compiled code must not see our code.
        self._phases: PhaseWatch | None = None
        if not self._gpu and turns is None and not request.compiles:
            self._phases = PhaseWatch()
        self._stacks: StackSamples | None = None
        if request.watches_program:
            self._stacks = StackSamples(lambda: self._timer.num_calls + self._trials.num_calls)
        # The result of the timed steps, once they are over.
        self._timed: PlainRun | None = None
        self._trials = ThreadTrials(
            lambda is_patient: StepTimer(
                self._clock,
                (1.0 if is_patient else _TRIAL_SHARE) * request.budget_s,
                pool=self._pool,
                rare_patience=_RARE_PATIENCE if is_patient else 0.0,
                expects_rare_work=self._timer.expects_rare_work,
            )
        )
        self._generated = GeneratedTrial(self._clock, self._optimizers)
        self._settings = configured(
            request.configuration, device="cuda" if self._gpu == "cuda" else "cpu"
        )

    @property
    def num_steps(self) -> int:
        """Return the number of updates so far."""
        return self._timer.num_calls + self._trials.num_calls

    def _apply(self) -> None:
        if not self._gpu:
            self._run_cuda_by_cpu(lambda: setattr(self, "_is_compiled", True))
        if self._request.tries_threads:
            self.enter_context(self._trials)
        if self._stacks is not None:
            self.enter_context(self._stacks)
        self.enter_context(self._loaders)
        self.enter_context(self._optimizers)
        if not self._request.compiles:  # compiled code must not see ours
            self.enter_context(self._trained)
        if self._phases is not None:
            self._trained.watch_layers()
            self.enter_context(self._phases)
        if self._request.backwards_per_step:
            self.enter_context(BackwardCalls(self._end_backward))
        self._note_warnings()
        self.enter_context(self._settings)
        if self._turns is not None:
            self._turns.wait()
        self._started_ns = self._clock.now_ns()

    def result(self) -> PlainRun | None:
        """Return the samples so far, or None without a complete step."""
        run = self._timed or self._timed_steps()
        if run is None:
            return None
        trials = tuple(self._trials.results(self._phases, self._stacks))
        if not self._feeding.has_workers:
            run = replace(run, trials=trials)
        elif trials and not run.measurement.is_bound:
            run = replace(run, apart=trials[0])
        return replace(run, generated=self._generated.result())

    def _timed_steps(self) -> PlainRun | None:
        # Read page faults first: statistics take memory too.
        page_faults = self._page_faults.per_step(self._timer.num_calls)
        request, measurement, gpu = self._request, self._timer.measurement(), self._trained.gpu()
        if measurement is None or (self._gpu and gpu is None):
            return None
        ends = self._timer.end_calls()
        load = self._load.fraction() if self._load else 0.0
        if self._feeding.has_workers:
            # Waits are for the script's own workers. Other load would delay the workers too, by an
            # unknown time.
            measurement = replace(measurement, waited_ns=(), is_bound=load > BUSY_FRACTION)
        phases = None
        if self._phases is not None and not measurement.is_bound:
            phases = self._phases.phases(ends[measurement.num_warmup :])
        if phases is not None and request.backwards_per_step:
            # The end of such an update is unknown.
            phases = replace(phases, optimizer_ns=0.0)
        caveats = caveats_of_run(
            request,
            load_fraction=load,
            is_disturbed=measurement.is_disturbed,
            num_threads=torch.get_num_threads(),
            ignores_compile=self._is_compiled,
            ignores_graphs=self._graphs.num_replays > 0,
            cpu_precisions=() if gpu else self._trained.precisions(),
        )
        return PlainRun(
            measurement=measurement,
            processor=gpu_name(gpu) if gpu else cpu_name(),
            precision=self._trained.precision(),
            num_threads=torch.get_num_threads(),
            peak_memory_bytes=gpu_peak_bytes(gpu) if gpu else peak_bytes(),
            loader=self._feeding.use(self._timer.num_rounds),
            caveats=tuple(caveats),
            sources=user_sources(request.target),
            startup_ns=max(0, self._timer.first_end_ns - self._started_ns),
            warnings=tuple(self._warnings),
            load_fraction=load,
            page_faults_per_step=page_faults,
            effects=self._settings.effects(),
            turns=tuple(self._turns.of_calls[call] for call in ends[1:]) if self._turns else (),
            phases=phases,
            power=self._meter and self._meter.power,
            **other_work_of(measurement, ends, self._stacks)._asdict(),
        )

    def _end_backward(self, call: BackwardCall) -> None:
        """End a step after a number of backward passes, if no optimizer of torch ends it."""
        self._trained.note_loss(next(iter(call.outputs), None))
        self._num_backwards += 1
        if self._num_backwards % self._request.backwards_per_step == 0:
            self._mark(-1)

    def _mark(self, optimizer: int) -> None:
        self._end_step(optimizer)

    def _time(self, optimizer: int) -> None:
        if self._load is None:
            self._trained.unwatch_layers()
            self._load = OtherLoad(counts_group=self._turns is None)
            gpu = self._trained.gpu()
            self._meter = EnergyMeter(gpu_uuid(gpu) if gpu else "")
        if self._stacks is not None:
            self._stacks.note_update()
            if not self.num_steps:
                self._timer.expects_rare_work = bool(self._stacks.first_pass().other_work)
        is_enough = self._timer.mark(optimizer)
        if self._turns is not None:
            self._turns.of_calls.append(self._turns.number)
        self._page_faults.mark(self._timer.num_calls)
        if self._phases is not None:
            self._phases.mark()
        use = self._loaders.end_step()
        if use is not None:
            self._feeding.uses.append(use)
            if use.num_workers and not self._host_clock.is_wall:
                # The workers belong to the script: a wait for them occurs in every run.
                self._host_clock.is_wall = True
                self._timer.stop_waiting()
                if self._pool is not None:
                    self._pool.count_this_thread()
        self._on_step(self._timer.num_calls, self._timer.is_waiting)
        is_known = self._request.backwards_per_step > 0 or self._optimizers.is_round_known()
        if is_enough and is_known and self._graphs.is_settled:
            if self._meter is not None and self._turns is None:
                self._meter.stop()
            if self._request.times_loader:
                self._feeding.alone_ns, self._feeding.taking_ns = self._loaders.time_alone()
            # Conclude before the trials, which take memory and processors.
            self._timed = self._timed_steps()
            if self._timed is None or not self._begin_trials(self._timed):
                self._begin_generated()
        elif self._turns is not None:
            self._turns.end_step(self._load, self._pool)

    def _begin_trials(self, timed: PlainRun) -> bool:
        """Start trials on fewer threads or without workers; return whether any trial is useful."""
        median_ns, counts, is_patient = timed.measurement.median_ns, list[int](), False
        if self._feeding.has_workers:
            is_short = self._phases is not None and median_ns <= LONGEST_NS
            if is_short and self._loaders.rest(self._feeding.alone_ns):
                counts = [timed.num_threads]
        elif self._request.tries_threads:
            counts = self._trials.counts_to_try(timed.measurement)
            # The timing already waited for rare work: wait again only if it will recur.
            is_rare = timed.measurement.has_rare_work and not self._timer.expects_rare_work
            is_patient = self._request.watches_program and timed.other is None and not is_rare
        num_calls = self._timer.num_calls
        if not self._trials.begin(counts, median_ns, num_calls, is_patient=is_patient):
            return False
        self._end_step = self._try_threads
        return True

    def _try_threads(self, optimizer: int) -> None:
        if self._stacks is not None:
            self._stacks.note_update()
        if self._phases is not None:
            self._phases.mark()
        use = self._loaders.end_step()
        is_enough = self._trials.mark(optimizer, None if use is None else use.wait_ns)
        self._on_step(self.num_steps, False)
        if is_enough:
            self._loaders.work_on()
            self._begin_generated()

    def _begin_generated(self) -> None:
        """Start the trial of generated code, or end the run."""
        request, timed = self._request, self._timed
        is_tried = request.tries_generated and not self._gpu and not request.backwards_per_step
        if not is_tried or timed is None or timed.measurement.median_ns > LONGEST_STEP_NS:
            self._on_done()
            return
        if self._stacks is not None:
            self._stacks.stop()
        self.enter_context(self._generated)
        self._generated.begin()
        self._end_step = self._try_generated

    def _try_generated(self, optimizer: int) -> None:
        self._loaders.end_step()
        self._on_step(self.num_steps, False)
        if self._generated.mark(optimizer):
            self._on_done()

    def _note_warnings(self) -> None:
        """Note the first few distinct warnings, except those that the script silences."""
        original = warnings.showwarning

        def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if len(self._warnings) < _MAX_WARNINGS:
                line = next(iter(str(message).splitlines()), "")
                text = f"{category.__name__}: {line}"[:_MAX_WARNING_CHARACTERS]
                self._warnings[text] = None
            original(message, category, *args, **kwargs)

        self.replace(warnings, "showwarning", show)


def caveats_of_run(
    request: RunRequest, *, load_fraction: float, is_disturbed: bool, num_threads: int,
    ignores_compile: bool, ignores_graphs: bool, cpu_precisions: Iterable[str],
) -> Iterator[Caveat]:  # fmt: skip
    """Yield cautions about the time of the steps.

    Args:
        request: The run.
        load_fraction: Share of the machine that other processes used meanwhile, 0 to 1.
        is_disturbed: Whether they delayed every step.
        num_threads: Threads of torch in the steps.
        ignores_compile: Whether the script's ``torch.compile`` was ignored.
        ignores_graphs: Whether the script's CUDA graphs ran as single operators.
        cpu_precisions: Arithmetic of steps on this CPU; empty for steps on a GPU.
    """
    if ignores_compile:
        yield COMPILE_IGNORED
    if load_fraction > BUSY_FRACTION:
        used = f"other processes used {format_percent(load_fraction)} of this machine while the"
        if is_disturbed:
            held_up = "they delayed every step, so its time is only an upper bound"
            yield Caveat(code=BUSY_MACHINE, message=f"{used} step was measured; {held_up}")
        else:
            left_out = "delayed measurements are left out"
            yield Caveat(code=BUSY_BESIDE, message=f"{used} step was measured; {left_out}")
    if request.has_cuda:
        yield _NEEDS_CUDA
    if ignores_graphs:
        yield GRAPHS_RUN_EAGERLY
    halves = [name for name in cpu_precisions if name in ("fp16", "bf16")]
    if emulated := " and no ".join(name for name in halves if not has_half_hardware(name)):
        yield Caveat(
            code=EMULATED_ON_CPU,
            message=f"{cpu_name()} has no {emulated} instructions: torch emulates it, "
            "far slower than fp32",
        )
    quota = cpu_quota()
    if quota is not None and quota < num_threads:
        yield Caveat(
            code="cpu-quota",
            message=f"a cgroup limits this process to {quota:.3g} processors: long runs on more "
            "threads are slower than shown, on this CPU and on the host of a GPU",
        )
    asked = request.configuration.num_threads
    if asked not in (0, num_threads):
        yield Caveat(
            code="own-threads",
            message=f"the script sets torch's threads itself: it ran on {num_threads}, not on "
            f"{asked}",
        )
