"""What happens on the two timelines of a step, as an explanation shows it."""

from __future__ import annotations

from breakeven.device import find_device
from breakeven.errors import Caveat
from breakeven.simulate import Program, Span, StepCause, WhatIf, build_program
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Phase, Sync
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, ExplainReport, TimelineSpan

# Spans of a timeline that a report keeps; a trace file for a viewer gets all of them.
_MAX_SPANS = 4000


def full_timeline(report: ExplainReport) -> tuple[TimelineSpan, ...]:
    """Return all spans of an explained step, also of one too long for a report.

    Raises:
        ValueError: The report has no recording.
    """
    if report.recording is None:
        raise ValueError("a report without a recording has no timeline to complete")
    program = build_program(report.recording.trace)
    what_if = WhatIf(program, find_device(report.device), report.recording.host)
    return critical_timeline(program, what_if)


def critical_timeline(program: Program, what_if: WhatIf) -> tuple[TimelineSpan, ...]:
    """Return what happens on both timelines, by start, and what of it is critical.

    Args:
        program: The step.
        what_if: The same step on a device.
    """
    critical = what_if.critical_events()
    spans = [
        _span(program, span, is_critical=(span.event, span.is_on_device) in critical)
        for span in what_if.timeline.spans
    ]
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.track)))


def shortened(
    spans: tuple[TimelineSpan, ...], limit: int = _MAX_SPANS
) -> tuple[tuple[TimelineSpan, ...], tuple[Caveat, ...]]:
    """Return the longest spans, in their order, and a caveat if some were left out."""
    if len(spans) <= limit:
        return spans, ()
    longest = sorted(spans, key=lambda span: span.start_ns - span.end_ns)[:limit]
    kept = tuple(sorted(longest, key=lambda span: (span.start_ns, span.track)))
    message = (
        f"the timeline holds the {limit} longest of {len(spans)} spans; all of them: --trace FILE"
    )
    return kept, (Caveat(code="timeline-cut", message=message),)


def _span(program: Program, span: Span, *, is_critical: bool) -> TimelineSpan:
    events = program.trace.events
    # The end of the step, with what no event accounts for, has no event of its own.
    event = events[span.event] if span.event < len(events) else None
    location = event.location if event is not None else None
    name, cause = _name_and_cause(event, program, span)
    return TimelineSpan(
        track=DEVICE_TRACK if span.is_on_device else HOST_TRACK,
        name=name,
        cause=cause,
        phase=event.phase.value if event is not None else "",
        module=event.module if isinstance(event, Op) else "",
        file=location.file if location else None,
        line=location.line if location else None,
        # A device may still be busy with the step before when the host begins this one.
        start_ns=max(0.0, span.start_ns),
        end_ns=max(0.0, span.end_ns),
        is_critical=is_critical,
    )


def _name_and_cause(event: Event | None, program: Program, span: Span) -> tuple[str, str]:
    match event:
        case Op():
            lowering = program.lowerings[span.event]
            if lowering is None:
                return event.name, StepCause.HOST_OPERATORS
            if span.is_on_device and lowering.kernels:
                return event.name, f"device-{lowering.kernels[0].family.value}"
            is_update = event.phase is Phase.OPTIMIZER
            return event.name, StepCause.OPTIMIZER if is_update else StepCause.DISPATCHER
        case Copy():
            cause = StepCause.COPY_PINNED if event.is_pinned else StepCause.COPY_PAGEABLE
            return f"copy to {'device' if event.is_to_device else 'host'}", cause
        case Sync():
            return f"wait ({event.kind})", StepCause.SYNC
        case HostWork():
            is_data = event.kind == "data"
            return event.kind, StepCause.DATA_LOADING if is_data else StepCause.SCRIPT
        case GraphLaunch():
            return "CUDA graph", StepCause.LAUNCH
        case None:
            return "end of the step", StepCause.DISPATCHER
