"""The step as it was measured here: on the threads that suit it, and what that says of a GPU's.

A report shows it as it was; a recorded step is predicted with the durations of the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from breakeven.capture import PlainRun, ThreadTrial, TracedRun
from breakeven.device import FeedingHost, HostSpec
from breakeven.errors import Caveat, has_caveat
from breakeven.session.runs import CLEARLY_FASTER, Runs
from breakeven.simulate import (
    MeasuredStep,
    Program,
    anchored_host,
    build_program,
    predict_cpu_step,
    scaled_host,
)
from breakeven.timing import (
    BUSY_BESIDE,
    BUSY_FRACTION,
    BUSY_MACHINE,
    EMULATED_ON_CPU,
    Source,
    StepPhases,
)
from breakeven.trace import Event, HostWork, Op, Phase, StepTrace
from breakeven.units import format_percent, format_ratio
from breakeven.verdict import DeviceKind, DeviceResult, cpu_on_threads, threads_text

# Operators that took so many times as long while they were recorded as the whole step does were
# held up by other work, or are those of another step than most. As a rule they take nine tenths.
_UNTYPICAL = 1.5
# Not counted for each of them: what a recorder's call adds at most to what an operator takes.
_RECORDED_CALL_NS = 5_000
# And a step that takes so many times as long as they and the Python between did beside other
# work is not believed.
_UNBELIEVABLE = 5.0
# A share of the measured step that is said.
_MUCH_WAITING = 0.1
_BUSY_CODES = frozenset({BUSY_MACHINE, BUSY_BESIDE})
# What it adds to the uncertainty of a host that its costs were measured beside other work, whose
# data are in its caches.
_BUSY_LOG_SIGMA = 0.1

# A step that would take so many times as long as it did is another one, which shows nothing of the
# host's work, as one in a format that the CPU emulates; and what that adds to the uncertainty of
# the host.
_OTHER_PATH = 1.6
_OTHER_PATH_LOG_SIGMA = 0.25


class TimedStep(NamedTuple):
    """The step as it was recorded, timed as the script runs it, and timed at its best."""

    traced: TracedRun
    as_set: PlainRun
    best: PlainRun
    results: tuple[DeviceResult, ...]


def time_recorded_step(
    runs: Runs, traced: TracedRun, *, tries_generated: bool = False
) -> TimedStep:
    """Time the step; further runs have the number of threads that suits it.

    Where the recorded step is not typical, it is recorded again: with fewer threads, where other
    work held it up, and of more steps, where the script evaluates or draws in its first few.

    Args:
        runs: Runs the target.
        traced: The step as it was recorded.
        tries_generated: Time generated code for the step too, where it is short.
    """
    as_set = upper_bound_if_disturbed(runs.measure(tries_generated=tries_generated), traced)
    step_ns = min(run.measurement.median_ns for run in (as_set, *as_set.trials))
    ops_ns = sum(max(0, op.host_ns - _RECORDED_CALL_NS) for op in traced.trace.ops)
    is_untypical = ops_ns > _UNTYPICAL * step_ns
    best = at_best_thread_count(as_set, prefers_fewer=is_untypical)
    if not best.measurement.is_disturbed:
        # What was held up is shown, but nothing rests on it.
        as_set = _without_warning(as_set)
    runs.use_threads(best.num_threads, for_traces=is_untypical)
    if is_untypical:
        runs.record_longer()
        traced = runs.trace()
    return TimedStep(traced, as_set, best, _shown_results(as_set, best))


def _shown_results(as_set: PlainRun, best: PlainRun) -> tuple[DeviceResult, ...]:
    """Return the results on the numbers of threads that say something of the CPU's step.

    They are those that the prediction rests on, the fastest, the fastest which no other work
    disturbed, and, last, those of the script itself.
    """
    tried = [as_set, *(_on_threads(as_set, trial) for trial in as_set.trials)]
    fastest = min(tried, key=_step_ns)
    calmest = min(tried, key=lambda run: (run.measurement.is_disturbed, _step_ns(run)))
    shown = {run.num_threads: run for run in (best, fastest, calmest)}
    shown.pop(as_set.num_threads, None)
    shown[as_set.num_threads] = as_set
    calm = calmest.measurement
    results: list[DeviceResult] = []
    for threads, run in shown.items():
        result = measured_result(run, DeviceKind.CPU)
        share = calmest.num_threads / threads
        if result.is_disturbed and not calm.is_disturbed and share < 1:
            # So many threads are at most so many times as fast as one.
            low_ns = max(result.low_ns, share * calm.estimate.low_ns)
            result = replace(result, low_ns=min(low_ns, result.step_ns))
        setting = threads_text(threads) if len(shown) > 1 else ""
        results.append(replace(result, setting=setting))
    return tuple(results)


def upper_bound_if_disturbed(run: PlainRun, traced: TracedRun) -> PlainRun:
    """Return a run whose steps count as a bound where they cannot be what the script takes.

    Beside other work they took many times as long as the operators and the Python between them
    did while they were recorded. How much of it is the script's is not known then, nor of its
    phases; and trials like that say nothing.

    Args:
        run: The steps, timed.
        traced: The step as it was recorded.
    """
    events = traced.trace.events
    ops_ns = sum(op.host_ns for op in traced.trace.ops)
    works_ns = sum(event.duration_ns for event in events if isinstance(event, HostWork))
    longest_ns = _UNBELIEVABLE * (ops_ns + works_ns)
    if run.load_fraction <= BUSY_FRACTION or _is_emulated(run):
        return run
    run = replace(
        run,
        trials=tuple(each for each in run.trials if each.measurement.median_ns < longest_ns),
    )
    if run.measurement.median_ns < longest_ns:
        return run
    factor = _UNBELIEVABLE * run.measurement.median_ns / max(longest_ns, 1)
    message = (
        f"other processes used {format_percent(run.load_fraction)} of this machine while the step "
        f"was measured; it took {format_ratio(factor)} what its operators and the Python "
        "between them took by themselves, so that its time is a bound"
    )
    return replace(
        run,
        measurement=replace(run.measurement, waited_ns=(), is_bound=True),
        phases=None,
        other=None,
        other_work=(),
        gap=None,
        caveats=(
            *(caveat for caveat in run.caveats if caveat.code not in _BUSY_CODES),
            Caveat(code=BUSY_MACHINE, message=message),
        ),
    )


def at_best_thread_count(as_set: PlainRun, *, prefers_fewer: bool = False) -> PlainRun:
    """Return the run on the fastest number of threads; a disturbed time is a bound, and counts.

    Of those about as fast, one that no other work disturbed is better evidence, and one on the
    script's own number of threads the next best.

    Args:
        as_set: As the script runs, with trials of other numbers.
        prefers_fewer: Of those about as fast, take the fewest threads.
    """
    tried = [as_set, *(_on_threads(as_set, trial) for trial in as_set.trials)]
    longest_ns = CLEARLY_FASTER * min(map(_step_ns, tried))
    return min(
        (run for run in tried if _step_ns(run) <= longest_ns),
        key=lambda run: (
            run.measurement.is_disturbed,
            run.num_threads if prefers_fewer else run is not as_set,
            _step_ns(run),
        ),
    )


def _step_ns(run: PlainRun) -> float:
    return run.measurement.estimate.value_ns


def _on_threads(as_set: PlainRun, trial: ThreadTrial) -> PlainRun:
    """Return the run as it would have been under what the trial changes."""
    loader, wait_ns = as_set.loader, trial.loader_wait_ns
    if loader is not None and wait_ns is not None:
        # What threads or other work held up there is no part of this step.
        loader = replace(loader, wait_ns=wait_ns)
    return replace(
        as_set if trial.measurement.is_disturbed else _without_warning(as_set),
        measurement=trial.measurement,
        phases=trial.phases,
        loader=loader,
        num_threads=trial.num_threads,
        other=trial.other,
        other_work=trial.other_work,
        gap=trial.gap,
    )


def _is_emulated(run: PlainRun) -> bool:
    """Return whether operators were timed in a format that they may not be recorded in."""
    return has_caveat(run.caveats, EMULATED_ON_CPU)


def _without_warning(run: PlainRun) -> PlainRun:
    return replace(run, caveats=tuple(c for c in run.caveats if c.code != BUSY_MACHINE))


def measured_result(plain: PlainRun, kind: DeviceKind) -> DeviceResult:
    """Return the result that a report shows for a device of this machine."""
    estimate = plain.measurement.estimate
    device, num_threads = plain.processor, None
    if kind is DeviceKind.CPU:
        num_threads = plain.num_threads
        device = cpu_on_threads(device, num_threads)
    return DeviceResult(
        device=device,
        kind=kind,
        source=Source.MEASURED,
        precision=plain.precision,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        bound=None,
        peak_memory_bytes=plain.peak_memory_bytes,
        fits=True,
        caveats=(*plain.caveats, *_waiting(plain)),
        num_samples=len(plain.measurement.steady_ns),
        is_disturbed=plain.measurement.is_disturbed,
        num_threads=num_threads,
    )


def _waiting(plain: PlainRun) -> tuple[Caveat, ...]:
    """Say how much of a measured step waits for worker processes, and if their pace is unknown."""
    loader, step_ns = plain.loader, plain.measurement.median_ns
    if loader is None or not loader.num_workers:
        return ()
    caveats: list[Caveat] = []
    if loader.wait_ns > _MUCH_WAITING * step_ns:
        share = format_percent(loader.wait_ns / step_ns)
        caveats.append(
            Caveat(
                code="waits-for-loader",
                message=f"{share} of the measured step waits for the worker processes of the "
                "DataLoader",
            )
        )
    if not loader.alone_ns:
        caveats.append(
            Caveat(
                code="loader-not-timed",
                message="the worker processes of the DataLoader were not timed by themselves; the "
                "GPU's step counts what their work took while it was recorded",
            )
        )
    return tuple(caveats)


class DevicePath:
    """Prepares traces of one script for prediction.

    A recorder slows down what it sees, so durations of the host come from the plain run: the
    data loader's own time, and for the script's other work an upper limit, the part of the plain
    step that neither operators nor the loader account for.

    Args:
        traced: The recorded step.
        plain: The same step, timed; what it shows of the host's work is that without the loader's
            worker processes, which take processors from it.
    """

    def __init__(self, traced: TracedRun, plain: PlainRun) -> None:
        trace = traced.trace
        if plain.apart is not None:
            plain = _on_threads(plain, plain.apart)
        operators_ns = sum(op.host_ns for op in trace.ops)
        data_ns = plain.loader.wait_ns if plain.loader else 0.0
        rest_ns = max(0.0, plain.measurement.own_ns - operators_ns - data_ns)
        script_ns = _total_ns(trace.events, "script")
        script_ratio = min(1.0, rest_ns / script_ns) if script_ns else 1.0
        # Of work of the host, by its kind, what it takes of what it took while it was recorded.
        self._ratios = {"data": _data_ratio(traced, plain), "script": script_ratio}
        self._traced = traced
        self._plain = plain

    @cached_property
    def step(self) -> StepTrace:
        """Return the recorded step, prepared."""
        return self.prepare(self._traced)

    @cached_property
    def program(self) -> Program:
        """Return the prepared step with its kernels."""
        return build_program(self.step)

    def host_for_prediction(self, host: HostSpec, here: HostSpec) -> HostSpec:
        """Return ``host`` with what the measured step shows of its work.

        Args:
            host: What issues the work of the GPUs.
            here: The machine that measured the step, with its costs measured as well.
        """
        if not isinstance(host, FeedingHost):
            return self._anchored_as(host, here)
        return host.each(lambda one: FeedingHost.of(self._anchored_as(one, here), one.kind))

    def _anchored_as(self, host: HostSpec, here: HostSpec) -> HostSpec:
        is_replayed = self.step.launches_graph
        # A graph's operators ran one by one on the CPU, which shows nothing of their replay.
        if self._plain.phases is None or self._plain.processor != here.name or is_replayed:
            return host
        loader = self._plain.loader
        is_crowded = loader is not None and loader.num_workers > 0 and self._plain.apart is None
        if is_crowded or _is_emulated(self._plain) or self.is_other_path(here):
            return replace(host, log_sigma=math.hypot(host.log_sigma, _OTHER_PATH_LOG_SIGMA))
        anchored = self._anchored(here, self._plain.phases)
        if here.load_fraction > BUSY_FRACTION:
            log_sigma = math.hypot(anchored.log_sigma, _BUSY_LOG_SIGMA)
            anchored = replace(anchored, log_sigma=log_sigma)
        return anchored if host.is_measured else scaled_host(host, here, anchored)

    def is_other_path(self, here: HostSpec) -> bool:
        """Return whether the step that was recorded cannot be the one that was timed.

        What is recorded would take this CPU far longer: the script does more on a GPU.

        Args:
            here: The machine that timed the step, with its costs measured.
        """
        if self._plain.processor != here.name:
            return False
        recorded_ns = predict_cpu_step(self.program, here).step_ns
        return recorded_ns > _OTHER_PATH * self._plain.measurement.own_ns

    def _anchored(self, host: HostSpec, phases: StepPhases) -> HostSpec:
        program = self.program
        step_ns, estimate = self._plain.measurement.own_ns, self._plain.measurement.estimate
        # Of a step that waited, its parts did so too.
        own_share = step_ns / self._plain.measurement.median_ns
        backward_ns = own_share * phases.backward_ns
        update_ns = own_share * phases.optimizer_ns
        if not update_ns:  # the script updates its weights itself, before the next step
            update_ns = predict_cpu_step(program, host).optimizer_ns
        # What the script does by itself is predicted as it is.
        after_backward = self.step.events[_end_of_backward(self.step) :]
        script_after_ns = _total_ns(after_backward, "script")
        script_before_ns = _total_ns(self.step.events, "script") - script_after_ns
        data_ns = self._plain.loader.wait_ns if self._plain.loader else 0.0
        before_ns = step_ns - backward_ns - update_ns
        return anchored_host(
            program,
            host,
            MeasuredStep(
                forward_ns=max(0.0, before_ns - script_before_ns - data_ns),
                backward_ns=backward_ns,
                optimizer_ns=max(0.0, update_ns - script_after_ns),
                spread=estimate.high_ns / estimate.low_ns,
            ),
        )

    def prepare(self, traced: TracedRun) -> StepTrace:
        """Return the step to predict."""
        taking_ns = round(self._plain.loader.taking_ns) if self._plain.loader else 0

        def as_timed(work: HostWork) -> HostWork:
            return replace(
                work,
                duration_ns=round(work.duration_ns * self._ratios.get(work.kind, 1.0)),
                taking_ns=taking_ns if work.num_workers else 0,
            )

        return replace(
            traced.trace,
            events=tuple(
                as_timed(event) if isinstance(event, HostWork) else event
                for event in traced.trace.events
            ),
        )


def _data_ratio(traced: TracedRun, plain: PlainRun) -> float:
    """Return the loader's time in the plain run over that in the traced one."""
    loader, traced_ns = plain.loader, _total_ns(traced.trace.events, "data")
    if loader is None or not traced_ns:
        return 1.0
    if not loader.num_workers:
        return min(1.0, loader.wait_ns / traced_ns)
    # The traced run sees the work itself, but neither the queue between processes nor the cores
    # that workers share; and the plain run waits for what is left of it only.
    num_batches = len(_works(traced.trace.events, "data"))
    return loader.alone_ns * loader.num_workers * num_batches / traced_ns or 1.0


def _end_of_backward(trace: StepTrace) -> int:
    """Return the position after the last operator of a backward pass; the end without any."""
    found = (
        position
        for position, event in enumerate(trace.events, start=1)
        if isinstance(event, Op) and event.phase is Phase.BACKWARD
    )
    return max(found, default=len(trace.events))


def _works(events: Sequence[Event], kind: str) -> list[HostWork]:
    return [event for event in events if isinstance(event, HostWork) and event.kind == kind]


def _total_ns(events: Sequence[Event], kind: str) -> int:
    return sum(work.duration_ns for work in _works(events, kind))
