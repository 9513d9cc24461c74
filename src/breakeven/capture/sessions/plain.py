"""Time the steps of a training loop as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from msgspec.structs import replace

from breakeven.capture.answers import LoaderUse, PlainRun
from breakeven.capture.gpus import gpu_here, gpu_name, gpu_peak_bytes
from breakeven.capture.requests import RunRequest
from breakeven.capture.sessions.generated_trial import LONGEST_STEP_NS, GeneratedTrial
from breakeven.capture.sessions.plain_parts import (
    LONGEST_NS,
    StackSamples,
    ThreadTrials,
    WarningWatch,
    other_work_of,
)
from breakeven.capture.sessions.plain_run import (
    Trained,
    caveats_of_run,
    typical_use,
    uses_workers,
)
from breakeven.capture.sessions.run_facts import user_sources
from breakeven.capture.sessions.session import (
    BackwardCall,
    BackwardCalls,
    PhaseWatch,
    UpdateSession,
)
from breakeven.capture.sessions.turns import TurnClock, Turns
from breakeven.measure import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    PATIENCE,
    GpuClock,
    HostClock,
    OtherLoad,
    PageFaults,
    PoolWaits,
    StepTimer,
)
from breakeven.memory import peak_bytes
from breakeven.processor import cpu_name
from breakeven.settings import configured
from breakeven.timing import BUSY_FRACTION, StepPhases, TurnKind

# For so many times the time for samples, what is done between some of the steps is waited for in
# the run by which a program is judged.
_RARE_PATIENCE = 6.0

# Of the time for samples, so much goes to each other number of threads.
_TRIAL_SHARE = 0.4

# Of the steps on a GPU that make one sample: enough for launches of one step to overlap with the
# kernels of the one before.
_GPU_STEPS_PER_SAMPLE = 10

# Of a run that takes turns, a ratio comes of each turn, and a turn may be one step: of so many, the
# mean is sure to some 3 % on a busy machine, hardly less than processes differ by. Where those
# differ by more, as with several threads, fewer do. Of short steps a long turn holds thousands.
_LEAST_STEPS = {TurnKind.NONE: LEAST_SAMPLES, TurnKind.SHORT: 40, TurnKind.LONG: 16}
_PATIENCE = {TurnKind.NONE: PATIENCE, TurnKind.SHORT: 8.0, TurnKind.LONG: 3.5}
_MOST_STEPS = {TurnKind.NONE: MOST_SAMPLES, TurnKind.SHORT: MOST_SAMPLES, TurnKind.LONG: 50_000}


class PlainSession(UpdateSession):
    """Times the steps of a training loop, with nothing added but the step boundary.

    Args:
        request: Which loaders get another batch size, and how long to take samples.
        on_done: Called from the training loop when there are samples enough.
        on_step: As in every session.
        turns: Of a run that takes turns with another one.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None, turns: Turns | None = None,
    ) -> None:  # fmt: skip
        super().__init__(request, on_done, on_step, around_fetch=self._around_fetch)
        # Its type, as torch calls it; empty on the CPU.
        self._gpu = gpu_here() if request.on_gpu else ""
        self._trained = Trained(self._optimizers, self._gpu)
        self._uses: list[LoaderUse] = []
        self._alone_ns, self._taking_ns = 0.0, 0.0
        self._num_backwards = 0
        self._num_skipped = 0
        # Of the steps as the script runs them; 0 before trials with others.
        self._num_threads = 0
        self._is_compiled = False
        self._load: OtherLoad | None = None
        self._turns = turns
        self._turn_of_call: list[int] = []
        self._host_clock = HostClock()
        clock = GpuClock(self._gpu) if self._gpu else self._host_clock
        self._clock = TurnClock(clock, turns) if turns else clock
        self._started_ns = self._clock.now_ns()
        steps_per_sample = _GPU_STEPS_PER_SAMPLE if self._gpu else 1
        # Where runs take turns, each is in the way of the other's threads.
        self._pool = None if self._gpu or turns else PoolWaits()
        self._timer = StepTimer(
            self._clock,
            request.budget_s,
            steps_per_sample,
            least_samples=_LEAST_STEPS[request.turns],
            patience=_PATIENCE[request.turns],
            most_samples=_MOST_STEPS[request.turns],
            pool=self._pool,
            rare_patience=_RARE_PATIENCE if request.watches_program else 0.0,
        )
        self._warnings = WarningWatch()
        self._phases = PhaseWatch(lambda call: self._trained.note_graph(call.outputs))
        # A device works on when the host has gone on, and what is compiled must not see our code.
        self._has_phases = not self._gpu and turns is None and not request.compiles
        self._page_faults = PageFaults()
        self._page_faults_per_step = 0.0
        self._trials = ThreadTrials(
            lambda is_patient: StepTimer(
                self._clock,
                (1.0 if is_patient else _TRIAL_SHARE) * request.budget_s,
                pool=self._pool,
                rare_patience=_RARE_PATIENCE if is_patient else 0.0,
                expects_rare_work=self._timer.expects_rare_work,
            )
        )
        # Steps beyond those that were timed, and what these said.
        self._generated = GeneratedTrial(self._clock, self._optimizers)
        self._timed: PlainRun | None = None
        self._stacks = (
            StackSamples(lambda: self._timer.num_calls + self._trials.num_calls)
            if request.watches_program
            else None
        )
        self._settings = configured(
            request.configuration, device="cuda" if self._gpu == "cuda" else "cpu"
        )

    @property
    def num_steps(self) -> int:
        """Return the updates so far."""
        return self._num_skipped + self._timer.num_calls + self._trials.num_calls

    def _apply(self) -> None:
        if not self._gpu:
            self._run_cuda_by_cpu(self._note_compile)
        if self._request.tries_threads:
            self.enter_context(self._trials)
        if self._stacks is not None:
            self.enter_context(self._stacks)
        self.enter_context(self._loaders)
        self.enter_context(self._optimizers)
        if not self._request.compiles:  # what is compiled must not see our code
            self.enter_context(self._trained)
        if self._has_phases:
            self._trained.watch_layers()
            self.enter_context(self._phases)
        if self._request.backwards_per_step:
            self.enter_context(BackwardCalls(self._end_backward))
        self.enter_context(self._warnings)
        self.enter_context(self._settings)
        if self._turns is not None:
            self._turns.wait()
        self._started_ns = self._clock.now_ns()

    def result(self) -> PlainRun | None:
        """Return the samples so far, or None when there is no complete step."""
        if self._timed is not None:
            return replace(self._timed, generated=self._generated.result())
        return self._timed_steps()

    def _timed_steps(self) -> PlainRun | None:
        # First of all: statistics take memory as well.
        page_faults = self._page_faults_per_step
        if not self._trials.is_running:
            page_faults = self._page_faults.per_step(self._timer.num_calls)
        measurement = self._timer.measurement()
        gpu = self._trained.gpu()
        if measurement is None or (self._gpu and gpu is None):
            return None
        load = self._load.fraction() if self._load else 0.0
        has_workers = uses_workers(self._uses)
        is_bound = has_workers and load > BUSY_FRACTION
        if has_workers:
            # What waits does so for the script's own workers. Beside other work, these wait as
            # well, and nobody asks them how long.
            measurement = replace(measurement, waited_ns=(), is_bound=is_bound)
        num_threads = self._num_threads or torch.get_num_threads()
        precision = self._trained.precision()
        caveats = caveats_of_run(
            self._request,
            load_fraction=load,
            is_disturbed=measurement.is_disturbed,
            num_threads=num_threads,
            ignores_compile=self._is_compiled,
            ignores_graphs=self._graphs.num_replays > 0,
            cpu_precisions=() if gpu else self._trained.precisions(),
        )
        other = other_work_of(measurement, self._timer.end_calls(), self._stacks)
        trials = self._trials.results(self._phases if self._has_phases else None, self._stacks)
        return PlainRun(
            measurement=measurement,
            processor=gpu_name(gpu) if gpu else cpu_name(),
            precision=precision,
            num_threads=num_threads,
            peak_memory_bytes=gpu_peak_bytes(gpu) if gpu else peak_bytes(),
            loader=typical_use(self._uses, self._timer.num_rounds, self._alone_ns, self._taking_ns),
            caveats=tuple(caveats),
            sources=user_sources(self._request.target),
            startup_ns=max(0, self._timer.first_end_ns - self._started_ns),
            warnings=self._warnings.texts,
            load_fraction=load,
            page_faults_per_step=page_faults,
            effects=self._settings.effects(),
            turns=self._sample_turns(),
            phases=None if is_bound else self._step_phases(measurement.num_warmup),
            trials=() if has_workers else trials,
            apart=trials[0] if has_workers and trials and not is_bound else None,
            **other._asdict(),
        )

    def _end_backward(self, call: BackwardCall) -> None:
        """End a step after each so many backward passes, as no optimizer of torch does."""
        self._trained.note_loss(next(iter(call.outputs), None))
        self._num_backwards += 1
        if self._num_backwards % self._request.backwards_per_step == 0:
            self._mark(-1)

    def _mark(self, optimizer: int) -> None:
        if self._num_skipped < self._request.num_skipped_steps:
            self._num_skipped += 1
            self._loaders.end_step()
            return
        if self._generated.is_running:
            self._loaders.end_step()
            self._on_step(self.num_steps, False)
            if self._generated.mark(optimizer):
                self._on_done()
            return
        self._load = self._load or OtherLoad(counts_group=self._turns is None)
        if self._stacks is not None:
            self._stacks.note_update()
            if not self.num_steps:
                self._timer.expects_rare_work = bool(self._stacks.first_pass().other_work)
        if self._trials.is_running:
            self._mark_trial(optimizer)
            return
        is_enough = self._timer.mark(optimizer)
        if self._turns is not None:
            self._turn_of_call.append(self._turns.number)
        self._page_faults.mark(self._timer.num_calls)
        if self._has_phases:
            self._phases.mark()
        use = self._loaders.end_step()
        if use is not None:
            self._uses.append(use)
            if use.num_workers and not self._host_clock.is_wall:
                # They are the script's own: what waits for them waits in every run.
                self._host_clock.is_wall = True
                self._timer.stop_waiting()
                if self._pool is not None:
                    self._pool.count_this_thread()
        self._on_step(self._timer.num_calls, self._timer.is_waiting)
        has_own_updates = self._request.backwards_per_step > 0
        is_known = has_own_updates or self._optimizers.is_round_known()
        if is_enough and is_known and self._graphs.is_settled:
            if self._request.times_loader:
                self._alone_ns, self._taking_ns = self._loaders.time_alone()
            if not self._begin_trials() and not self._begin_generated():
                self._on_done()
        elif self._turns is not None:
            self._turns.end_step(self._load)

    def _begin_trials(self) -> bool:
        """Go on with fewer threads, or without workers; return whether there is anything to try."""
        measurement = self._timer.measurement()
        has_workers = uses_workers(self._uses)
        if measurement is None or not (has_workers or self._request.tries_threads):
            return False
        if has_workers and (
            not self._has_phases
            or measurement.median_ns > LONGEST_NS
            or not self._loaders.rest(self._alone_ns)
        ):
            return False
        self._num_threads = torch.get_num_threads()
        self._page_faults_per_step = self._page_faults.per_step(self._timer.num_calls)
        if has_workers:
            return self._trials.begin_apart(measurement, self._timer.num_calls)
        found = other_work_of(measurement, self._timer.end_calls(), self._stacks)
        # What came too rarely was waited for already, unless it is sure to come again.
        is_rare = measurement.has_rare_work and not self._timer.expects_rare_work
        is_hidden = found.other is None and not is_rare
        is_patient = self._request.watches_program and is_hidden
        return self._trials.begin(measurement, self._timer.num_calls, is_patient=is_patient)

    def _mark_trial(self, optimizer: int) -> None:
        waits_ns = self._trials.waits_ns
        is_enough = self._trials.mark(optimizer)
        if self._has_phases:
            self._phases.mark()
        use = self._loaders.end_step()
        if use is not None:
            waits_ns.append(use.wait_ns)
        self._on_step(self.num_steps, False)
        if is_enough:
            self._loaders.work_on()
            if not self._begin_generated():
                self._on_done()

    def _begin_generated(self) -> bool:
        """Go on with what generated code takes for the step; return whether that is tried."""
        if not self._request.tries_generated or self._gpu or self._request.backwards_per_step:
            return False
        timed = self._timed_steps()
        if timed is None or timed.measurement.median_ns > LONGEST_STEP_NS:
            return False
        # What follows is in none of its figures: compiling takes memory, and a processor.
        self._timed = timed
        if self._stacks is not None:
            self._stacks.stop()
        self.enter_context(self._generated)
        self._generated.begin()
        return True

    def _around_fetch(self, _: object) -> AbstractContextManager[object]:
        return self._generated.fetching()

    def _step_phases(self, num_warmup: int) -> StepPhases | None:
        if not self._has_phases:
            return None
        found = self._phases.phases(self._timer.end_calls()[num_warmup:])
        if found is not None and self._request.backwards_per_step:
            return replace(found, optimizer_ns=0.0)  # nothing says when such an update ends
        return found

    def _sample_turns(self) -> tuple[int, ...]:
        ends = self._timer.end_calls()[1:] if self._turns is not None else ()
        return tuple(self._turn_of_call[call] for call in ends)

    def _note_compile(self) -> None:
        self._is_compiled = True
