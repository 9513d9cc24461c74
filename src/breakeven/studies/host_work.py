"""The host's work in a recorded step, with durations from the same step timed on this CPU.

A recorder slows down the code that it records, so host durations come from the timed run. These are
the data loader's own time and, for the script's other work, an upper limit: the time that neither
operators nor the loader account for. Work between two steps is priced like a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.capture import Gap, OtherWork, PlainRun, ThreadTrial, TracedRun
from breakeven.device import DeviceSpec, FeedingHost, HostSpec
from breakeven.errors import has_caveat
from breakeven.simulate import MeasuredStep as MeasuredPhases
from breakeven.simulate import (
    Program,
    anchored_host,
    build_program,
    predict_cpu_step,
    predict_steps,
    scaled_host,
)
from breakeven.timing import BUSY_FRACTION, BUSY_MACHINE, EMULATED_ON_CPU, Measurement, StepPhases
from breakeven.trace import Event, HostWork, Op, Phase, RunFacts, StepTrace
from breakeven.verdict import BetweenTime

# Added uncertainty of a host whose costs were measured while other work used its caches.
_BUSY_LOG_SIGMA = 0.1
# If the recorded step would take this many times the timed one, then they differ (for example in a
# format that the CPU emulates), and the timed one shows nothing about the host's work. The second
# value is the added uncertainty of the host.
_OTHER_PATH = 1.6
_OTHER_PATH_LOG_SIGMA = 0.25


def on_threads(as_set: PlainRun, trial: ThreadTrial) -> PlainRun:
    """Return the run as it would be under the change of a trial."""
    loader, wait_ns = as_set.loader, trial.loader_wait_ns
    if loader is not None and wait_ns is not None:
        # Delays by threads or other work are not part of this step.
        loader = replace(loader, wait_ns=wait_ns)
    return replace(
        as_set if trial.measurement.is_disturbed else without_warning(as_set),
        measurement=trial.measurement,
        phases=trial.phases,
        loader=loader,
        num_threads=trial.num_threads,
        other=trial.other,
        other_work=trial.other_work,
        gap=trial.gap,
        power=trial.power,
    )


def without_warning(run: PlainRun) -> PlainRun:
    """Return a run without the caveat that the machine was busy."""
    return replace(run, caveats=tuple(c for c in run.caveats if c.code != BUSY_MACHINE))


def as_timed(trace: StepTrace, traced: TracedRun, plain: PlainRun) -> StepTrace:
    """Return a recorded step with the host durations of the timed one.

    Args:
        trace: The step, at any batch size.
        traced: The recording of the timed step.
        plain: The timed step.
    """
    plain = _while_workers_rest(plain)
    loader, events = plain.loader, traced.trace.events
    ratios = {"data": 1.0, "script": 1.0}
    num_batches = sum(isinstance(event, HostWork) and event.kind == "data" for event in events)
    if loader is not None and (traced_ns := total_ns(events, "data")):
        if loader.num_workers:
            # The recorder sees the work itself, but neither the queue between processes nor the
            # cores that workers share. The timed run only waits for the rest of the work.
            work_ns = loader.alone_ns * loader.num_workers * num_batches
            ratios["data"] = work_ns / traced_ns or 1.0
        else:
            ratios["data"] = min(1.0, loader.wait_ns / traced_ns)
    if script_ns := total_ns(events, "script"):
        operators_ns = sum(op.host_ns for op in traced.trace.ops)
        data_ns = loader.wait_ns if loader else 0.0
        rest_ns = max(0.0, plain.measurement.own_ns - operators_ns - data_ns)
        ratios["script"] = min(1.0, rest_ns / script_ns)
    taking_ns = round(loader.taking_ns) if loader else 0

    def timed(event: Event) -> Event:
        if not isinstance(event, HostWork):
            return event
        return replace(
            event,
            duration_ns=round(event.duration_ns * ratios.get(event.kind, 1.0)),
            taking_ns=taking_ns if event.num_workers else 0,
        )

    return replace(trace, events=tuple(map(timed, trace.events)))


def host_for_prediction(
    program: Program, plain: PlainRun, host: HostSpec, here: HostSpec
) -> HostSpec:
    """Return a host adjusted to the work that the timed step shows.

    Args:
        program: The recorded step, with the timed durations.
        plain: The same step, timed.
        host: The host that issues the work of the GPUs.
        here: The machine that timed the step, with its measured costs.
    """
    plain = _while_workers_rest(plain)
    # A graph's operators ran singly on the CPU, which shows nothing about their replay.
    if plain.phases is None or plain.processor != here.name or program.trace.launches_graph:
        return host
    is_crowded = plain.loader is not None and plain.loader.num_workers > 0 and plain.apart is None
    is_emulated = has_caveat(plain.caveats, EMULATED_ON_CPU)
    anchored = None
    if not (is_crowded or is_emulated or is_other_path(program, plain, here)):
        anchored = _anchored(program, plain, here)

    def changed(one: HostSpec) -> HostSpec:
        if anchored is None:
            return replace(one, log_sigma=math.hypot(one.log_sigma, _OTHER_PATH_LOG_SIGMA))
        return anchored if one.is_measured else scaled_host(one, here, anchored)

    if isinstance(host, FeedingHost):
        return host.each(lambda one: FeedingHost.of(changed(one), one.kind))
    return changed(host)


def with_factors_of(seen: HostSpec, host: FeedingHost) -> FeedingHost:
    """Return a host whose machines have the factors that a recorded step showed.

    The script's own work takes other machines as long as the recorded one, relatively. Measured
    machines have their own factors.

    Args:
        seen: The recorded host.
        host: The other one.
    """
    return host.each(
        lambda one: (
            one if one.is_measured else FeedingHost.of(scaled_host(one, seen, seen), one.kind)
        )
    )


def is_other_path(program: Program, plain: PlainRun, here: HostSpec) -> bool:
    """Return whether the recorded step cannot be the timed one.

    The recorded step would take this CPU far longer: the script does more on a GPU.

    Args:
        program: The recorded step, with the timed durations.
        plain: The step, timed.
        here: The machine that timed it, with its measured costs.
    """
    if plain.processor != here.name:
        return False
    recorded_ns = predict_cpu_step(program, here).step_ns
    return recorded_ns > _OTHER_PATH * _while_workers_rest(plain).measurement.own_ns


def total_ns(events: Iterable[Event], kind: str) -> int:
    """Return the total time of the host's work of a kind."""
    return sum(e.duration_ns for e in events if isinstance(e, HostWork) and e.kind == kind)


def _while_workers_rest(plain: PlainRun) -> PlainRun:
    """Return a timed run without the loader's workers, which compete with the step for cores."""
    return plain if plain.apart is None else on_threads(plain, plain.apart)


def _anchored(program: Program, plain: PlainRun, here: HostSpec) -> HostSpec:
    """Return this machine adjusted to the phases of the timed step."""
    assert plain.phases is not None
    events, measured = program.trace.events, plain.measurement
    step_ns = measured.own_ns
    # If the step waited, then assume that each part waited in proportion.
    own_share = step_ns / measured.median_ns
    backward_ns = own_share * plain.phases.backward_ns
    update_ns = own_share * plain.phases.optimizer_ns
    if not update_ns:  # the script updates its weights itself, before the next step
        update_ns = predict_cpu_step(program, here).optimizer_ns
    # The script's own work is left out here, since its prediction uses the measured time.
    ends = (
        position
        for position, event in enumerate(events, start=1)
        if isinstance(event, Op) and event.phase is Phase.BACKWARD
    )
    script_after_ns = total_ns(events[max(ends, default=len(events)) :], "script")
    script_before_ns = total_ns(events, "script") - script_after_ns
    data_ns = plain.loader.wait_ns if plain.loader else 0.0
    before_ns = step_ns - backward_ns - update_ns
    anchored = anchored_host(
        program,
        here,
        MeasuredPhases(
            forward_ns=max(0.0, before_ns - script_before_ns - data_ns),
            backward_ns=backward_ns,
            optimizer_ns=max(0.0, update_ns - script_after_ns),
            spread=measured.estimate.high_ns / measured.estimate.low_ns,
        ),
    )
    if here.load_fraction > BUSY_FRACTION:
        log_sigma = math.hypot(anchored.log_sigma, _BUSY_LOG_SIGMA)
        anchored = replace(anchored, log_sigma=log_sigma)
    return anchored


# Further error of the predicted time on a device, for a gap recorded in whole and in part. Set by
# judgement: the rest may differ, and one gap represents all.
_WHOLE_ERROR, _PART_ERROR = 0.1, 0.25
# The recording must explain at least this share of a gap's time.
_LEAST_SEEN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """The work between two steps.

    Args:
        gap: When it occurs, and its duration.
        plain: Its recording, as if it had been timed as a step.
        program: The recording with its kernels.
        scale: The whole gap over its recorded part.
        work: Its longest call of a model without gradients; empty if it calls none.
    """

    gap: Gap
    plain: PlainRun
    program: Program
    scale: float
    work: tuple[OtherWork, ...]

    def is_seen(self, here: HostSpec) -> bool:
        """Return whether the recording explains most of the gap's time on this CPU.

        Args:
            here: The machine, with its costs.
        """
        script_ns = total_ns(self.program.trace.events, "script")
        seen_ns = predict_cpu_step(self.program, here).step_ns + script_ns
        return self.scale * seen_ns > _LEAST_SEEN * self.gap.time_ns

    def times(
        self, other_ns: float, devices: Sequence[DeviceSpec], host: HostSpec, here: HostSpec
    ) -> Iterator[BetweenTime]:
        """Yield the time of all gaps per step on each device.

        Args:
            other_ns: Their time per step on this CPU.
            devices: GPUs.
            host: The host that issues the work.
            here: This machine, with its costs.
        """
        off = _WHOLE_ERROR if self.scale == 1.0 else _PART_ERROR
        factor = other_ns * self.scale / self.gap.time_ns
        host = host_for_prediction(self.program, self.plain, host, here)
        for found in predict_steps(self.program, devices, host):
            yield BetweenTime(
                device=found.device.name,
                time_ns=factor * found.estimate.value_ns,
                low_ns=factor * found.estimate.low_ns / (1 + off),
                high_ns=factor * found.estimate.high_ns * (1 + off),
            )


def recorded_gap(gap: Gap, traced: TracedRun, step: StepTrace, plain: PlainRun) -> RecordedGap:
    """Return a gap as a separate step, all of it forward pass or work of the script.

    The total time of a gap is known, but not that of its parts. Its operators repeat, so each takes
    the lower quartile of similar ones: pauses only ever add time.

    Args:
        gap: When it occurs, and its duration.
        traced: Its recording, including the following step if that was recorded too.
        step: The typical step.
        plain: The run that timed the steps.
    """
    found = before_step(traced.trace.events, step.events)
    times_ns: defaultdict[object, list[int]] = defaultdict(list)
    for op in (event for event in found if isinstance(event, Op)):
        times_ns[_kind_of(op)].append(op.host_ns)
    typical_ns = {kind: sorted(times)[len(times) // 4] for kind, times in times_ns.items()}

    def as_forward(event: Event) -> Event:
        if isinstance(event, HostWork):
            return replace(event, phase=Phase.FORWARD, kind="script", num_workers=0)
        if isinstance(event, Op):
            return replace(event, phase=Phase.FORWARD, host_ns=typical_ns[_kind_of(event)])
        return replace(event, phase=Phase.FORWARD)

    events = tuple(map(as_forward, found))
    scale = 1.0
    if traced.recorded_fraction != 1.0:
        # Operators of a backward pass are no calls of the script.
        called = [event for event in step.events if event.phase is not Phase.BACKWARD]
        step_part = _num_issued(called) / (_num_issued(events) or 1)
        scale = max(1.0, 1 / traced.recorded_fraction - step_part)
    trace = replace(traced.trace, events=events, facts=RunFacts())
    plain = replace(
        plain,
        measurement=Measurement(samples_ns=(round(gap.time_ns / scale),) * 5),
        phases=StepPhases(backward_ns=0.0, optimizer_ns=0.0),
        loader=None,
    )
    calls = [call for call in traced.trace.facts.model_calls if not call.has_grad]
    call = max(calls, key=lambda each: each.num_events, default=None)
    work: tuple[OtherWork, ...] = ()
    if call is not None and call.location is not None:
        location = replace(call.location, function=f"{call.model} without gradients")
        work = (OtherWork(location=location, share=1.0),)
    program = build_program(as_timed(trace, TracedRun(trace=trace), plain))
    return RecordedGap(gap=gap, plain=plain, program=program, scale=scale, work=work)


def before_step(events: Sequence[Event], step: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events recorded before the forward pass of the following step.

    Args:
        events: Events recorded from an update on.
        step: The typical step, which issues as many events before its backward pass.
    """
    end = _first_backward(events)
    num_forward = _num_issued(step[: _first_backward(step)]) if end < len(events) else 0
    while end and num_forward:
        end -= 1
        num_forward -= not isinstance(events[end], HostWork)
    return tuple(events[:end])


def _first_backward(events: Sequence[Event]) -> int:
    found = (n for n, event in enumerate(events) if event.phase is Phase.BACKWARD)
    return next(found, len(events))


def _kind_of(op: Op) -> object:
    return op.name, tuple(spec.shape for spec in op.inputs)


def _num_issued(events: Sequence[Event]) -> int:
    return sum(not isinstance(event, HostWork) for event in events)
