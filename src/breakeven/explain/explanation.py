"""An explanation of a recorded step: its findings, its two timelines, and one fix after another."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence, Set

from msgspec.structs import replace

from breakeven.advise import Diagnosis, all_rules, disturbed_findings
from breakeven.device import DeviceSpec, find_device
from breakeven.errors import BreakevenError, Caveat
from breakeven.session import ComparedStep
from breakeven.simulate import Edit, Program, Side, Span, StepCause, WhatIf, build_program
from breakeven.timing import Source
from breakeven.trace import (
    Copy,
    Event,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    ScaledTrace,
    ScalingError,
    Sync,
)
from breakeven.verdict import (
    DEVICE_TRACK,
    EXPLAIN_SCHEMA_VERSION,
    HOST_TRACK,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    HostSummary,
    PlanStep,
    ProgramFacts,
    RecordedStep,
    TimelineSpan,
    program_of,
    rescaled,
)

# Spans of a timeline that a report keeps; a trace file for a viewer gets all of them.
_MAX_SPANS = 4000
# Fixes that a person would still do one after the other.
_MAX_FIXES = 8
_Again = Callable[[Program, Set[str]], Sequence[Diagnosis]]


def explained(
    step: ComparedStep,
    device: DeviceSpec,
    *,
    target: str,
    host: HostSummary,
    recording: RecordedStep,
    rules: frozenset[str] | None = None,
    caveats: tuple[Caveat, ...] = (),
    program: ProgramFacts | None = None,
    num_steps: int | None = None,
) -> ExplainReport:
    """Return the explanation of a step.

    Args:
        step: The step.
        device: The one of its devices on which it is taken apart.
        target: As the user wrote it.
        host: What issues the work.
        recording: The step as it is stored, with what was measured of it on the CPU.
        rules: Codes of the rules whose findings are wanted; None for all.
        caveats: What holds for all figures.
        program: What the script does besides its steps; None where that was not stored.
        num_steps: Steps of the training; None where it is not known how long it is.
    """
    prediction = step.prediction_on(device)
    what_if = WhatIf(step.program, device, step.host)
    found = step.diagnosed_on(device, scaled=_scaled(recording), cpu=recording.cpu, what_if=what_if)
    disturbed = disturbed_findings(step.trace.facts, recording.cpu) if found else ()
    wanted = [one for one in found if rules is None or one.finding.code in rules]
    timeline, cut = shortened(critical_timeline(step.program, what_if), _MAX_SPANS)
    return ExplainReport(
        schema_version=EXPLAIN_SCHEMA_VERSION,
        target=target,
        host=host,
        step=step.summary_on(device),
        device=device.name,
        results=step.results,
        verdict=step.verdict,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        bound=prediction.bound,
        host_busy_ns=prediction.host_ns,
        device_busy_ns=prediction.device_busy_ns,
        attribution=what_if.attribution(),
        timeline=timeline,
        findings=tuple(one.finding for one in wanted),
        plan=cumulative_plan(
            step, wanted, again=lambda changed, codes: step.diagnosed_again(changed, device, codes)
        ),
        num_suppressed=len(found) - len(wanted),
        caveats=(*caveats, *disturbed, *((cut,) if cut else ())),
        recording=recording,
        program=program and program_of(step.verdict, step.results, program, num_steps),
    )


def chosen_rules(names: Sequence[str]) -> frozenset[str] | None:
    """Return the codes of the rules that are meant; None for all, where none is named.

    Args:
        names: Codes (``SYNC001``) or causes (``SYNC_ITEM``), in any case.

    Raises:
        BreakevenError: There is no such rule.
    """
    if not names:
        return None
    known: dict[str, set[str]] = {}
    for rule in all_rules():
        known.setdefault(rule.code.upper(), set()).add(rule.code)
        known.setdefault(rule.cause.upper(), set()).add(rule.code)
    codes: set[str] = set()
    for name in names:
        if name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=3)
            meant = f"did you mean {' or '.join(close)}? " if close else ""
            raise BreakevenError(
                f"there is no rule {name!r}", hint=f"{meant}all rules: breakeven rules"
            )
        codes |= known[name.upper()]
    return frozenset(codes)


def _scaled(recording: RecordedStep) -> ScaledTrace | None:
    if recording.other_size is None:
        return None
    try:
        return ScaledTrace(recording.trace, recording.other_size)
    except ScalingError:  # it was the same step when it was recorded, by an earlier breakeven
        return None


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
    spans: tuple[TimelineSpan, ...], limit: int
) -> tuple[tuple[TimelineSpan, ...], Caveat | None]:
    """Return the longest spans, in their order, and a caveat where some were left out."""
    if len(spans) <= limit:
        return spans, None
    longest = sorted(spans, key=lambda span: span.start_ns - span.end_ns)[:limit]
    kept = tuple(sorted(longest, key=lambda span: (span.start_ns, span.track)))
    return kept, Caveat(
        code="timeline-cut",
        message=f"the timeline holds the {limit} longest of {len(spans)} spans; "
        "all of them: --trace FILE",
    )


def _span(program: Program, span: Span, *, is_critical: bool) -> TimelineSpan:
    trace = program.trace
    # The end of the step, with what no event accounts for, has no event of its own.
    event = trace.events[span.event] if span.event < len(trace.events) else None
    location = event.location if event is not None else None
    return TimelineSpan(
        track=DEVICE_TRACK if span.is_on_device else HOST_TRACK,
        name=_name(event),
        cause=_cause(event, program, span),
        phase=event.phase.value if event is not None else "",
        module=event.module if isinstance(event, Op) else "",
        file=location.file if location else None,
        line=location.line if location else None,
        # A device may still be busy with the step before when the host begins this one.
        start_ns=max(0.0, span.start_ns),
        end_ns=max(0.0, span.end_ns),
        is_critical=is_critical,
    )


def _name(event: Event | None) -> str:
    match event:
        case Op():
            return event.name
        case Copy():
            return "copy to device" if event.is_to_device else "copy to host"
        case Sync():
            return f"wait ({event.kind})"
        case HostWork():
            return event.kind
        case GraphLaunch():
            return "CUDA graph"
        case None:
            return "end of the step"


def _cause(event: Event | None, program: Program, span: Span) -> str:
    match event:
        case Op():
            lowering = program.lowerings[span.event]
            if span.is_on_device and lowering is not None and lowering.kernels:
                return f"device-{lowering.kernels[0].family.value}"
            if lowering is None:
                return StepCause.HOST_OPERATORS
            is_update = event.phase is Phase.OPTIMIZER
            return StepCause.OPTIMIZER if is_update else StepCause.DISPATCHER
        case Copy():
            return StepCause.COPY_PINNED if event.is_pinned else StepCause.COPY_PAGEABLE
        case Sync():
            return StepCause.SYNC
        case HostWork():
            return StepCause.DATA_LOADING if event.kind == "data" else StepCause.SCRIPT
        case GraphLaunch():
            return StepCause.LAUNCH
        case None:
            return StepCause.DISPATCHER


def cumulative_plan(
    step: ComparedStep,
    diagnosed: Sequence[Diagnosis],
    *,
    again: _Again,
) -> tuple[PlanStep, ...]:
    """Return the step as it is, and after one more fix each.

    Where a fix changes events that one before it has changed, the rules are asked again about the
    step as it is by then; a finding that is gone is no part of the plan. The CPU's own time is the
    measured one, less the work of the host that a fix removes, since that is the same work there;
    what else a fix changes on the CPU is not known.

    Args:
        step: The step.
        diagnosed: Findings in the order in which they are fixed; those without a simulated gain
            are left out.
        again: Returns the findings of some rules in a changed step.
    """
    fixes = [one for one in diagnosed if _is_part(one)][:_MAX_FIXES]
    codes = {one.finding.code for one in fixes}
    fixed = _FixedStep(step.program)
    steps = [_plan_step(None, step)]
    for one in fixes:
        if fixed.apply(one, lambda changed: again(changed, codes)):
            left = _measured_after(step.measured, fixed.removed_ns)
            changed = step.changed(fixed.program, left, is_captured=fixed.is_captured)
            steps.append(_plan_step(one, changed))
    return tuple(steps)


class _FixedStep:
    """A step to which one fix after another is applied."""

    def __init__(self, program: Program) -> None:
        self._base = program
        self._edit = Edit()
        self._removed_before_ns = 0
        # Findings of the present base, by where they are; None while it is the step as it was.
        self._found: dict[tuple[object, ...], Diagnosis] | None = None
        self.is_captured = False

    @property
    def program(self) -> Program:
        """Return the step with all fixes so far."""
        return self._base.edited(self._edit)

    @property
    def removed_ns(self) -> int:
        """Return the host's own work that is gone; that of loader workers runs beside the step."""
        return self._removed_before_ns + sum(
            event.duration_ns
            for index, event in enumerate(self._base.trace.events)
            if isinstance(event, HostWork)
            and not event.num_workers
            and not self._edit.event(index, event)
        )

    def apply(self, one: Diagnosis, again: Callable[[Program], Sequence[Diagnosis]]) -> bool:
        """Apply a fix; return whether there was anything left of its finding."""
        found = one if self._found is None else self._found.get(one.place)
        if found is None:
            return False
        if self._overlaps(found.match.edit):
            self._removed_before_ns = self.removed_ns
            self._base, self._edit = self.program, Edit()
            self._found = {other.place: other for other in again(self._base)}
            found = self._found.get(one.place)
            if found is None or not _is_part(found):
                return False
        self.is_captured = self.is_captured or found.match.scenario.is_captured
        if found.match.edit is not None:
            self._edit = self._edit.then(found.match.edit)
        return True

    def _overlaps(self, edit: Edit | None) -> bool:
        if edit is None:
            return False
        both_set = edit.settings is not None and self._edit.settings is not None
        return both_set or not self._edit.replaced.keys().isdisjoint(edit.replaced)


def _is_part(one: Diagnosis) -> bool:
    finding = one.finding
    return finding.side is Side.GPU and one.is_worth_it and finding.fixed_ns is not None


def _plan_step(one: Diagnosis | None, step: ComparedStep) -> PlanStep:
    finding = one.finding if one else None
    return PlanStep(
        code=finding.code if finding else "",
        title=finding.title if finding else "the step as it is",
        file=finding.file if finding else None,
        line=finding.line if finding else None,
        side=Side.GPU,
        results=step.results,
        verdict=step.verdict,
    )


def _measured_after(measured: Sequence[DeviceResult], removed_ns: int) -> tuple[DeviceResult, ...]:
    """Return the measured results without the host's work that fixes remove.

    A GPU that is here was measured with everything in the script; after a change it is predicted
    like all others, so its result is left out.
    """
    return tuple(
        _shorter(result, removed_ns) if removed_ns else result
        for result in measured
        if result.kind is DeviceKind.CPU
    )


def _shorter(result: DeviceResult, removed_ns: float) -> DeviceResult:
    # Work of the host that was recorded may be longer than it was in the measured run.
    factor = max(0.01, 1.0 - removed_ns / result.step_ns)
    shorter = rescaled(result, factor=factor)
    return replace(shorter, source=Source.PREDICTED, num_samples=0)
