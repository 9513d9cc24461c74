"""What a script does between its steps, recorded in part and priced on each device like a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.capture import Gap, OtherWork, PlainRun, TracedRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate import Program, build_program, predict_cpu_step, predict_steps
from breakeven.studies.host_work import as_timed, host_for_prediction, total_ns
from breakeven.timing import Measurement, StepPhases
from breakeven.trace import Event, HostWork, Op, Phase, RunFacts, StepTrace
from breakeven.verdict import BetweenTime

# How far off the time on a device may be besides, of what was recorded as a whole and of what was
# recorded in part. Judgement: the rest may do other things, and one gap stands for all.
_WHOLE_ERROR, _PART_ERROR = 0.1, 0.25
# So much of a gap's time must be seen in its recording for that to be what takes it.
_LEAST_SEEN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """What lies between two steps.

    Args:
        gap: When it comes, and how long it takes.
        plain: What was recorded of it, as if it had been timed as a step.
        program: The same with its kernels.
        scale: How many times what was recorded is in the gap.
        work: Its longest call of a model without gradients; empty if it calls none.
    """

    gap: Gap
    plain: PlainRun
    program: Program
    scale: float
    work: tuple[OtherWork, ...]

    def is_seen(self, here: HostSpec) -> bool:
        """Return whether what was recorded takes most of the gap's time on this CPU.

        Args:
            here: The machine, with its costs.
        """
        script_ns = total_ns(self.program.trace.events, "script")
        seen_ns = predict_cpu_step(self.program, here).step_ns + script_ns
        return self.scale * seen_ns > _LEAST_SEEN * self.gap.time_ns

    def times(
        self, other_ns: float, devices: Sequence[DeviceSpec], host: HostSpec, here: HostSpec
    ) -> Iterator[BetweenTime]:
        """Yield what all gaps take per step on each device.

        Args:
            other_ns: What they take per step on this CPU.
            devices: GPUs.
            host: What issues the work.
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
    """Return a gap as a step of its own, all of it forward pass or work of the script.

    Of a gap its whole time is known, and none of its parts. It repeats itself, so that an operator
    takes the lower quartile of those that are like it: pauses only ever add.

    Args:
        gap: When it comes, and how long it takes.
        traced: Its recording, with the step that follows if that was recorded too.
        step: The typical step.
        plain: The run in which steps are timed.
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
        # What a backward pass issues are no calls of the script.
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
    """Return what was recorded before the forward pass of the step that follows.

    Args:
        events: What was recorded from an update on.
        step: The typical step, which issues as much before its backward pass.
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
