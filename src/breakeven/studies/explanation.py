"""Explain a step: its findings, its two timelines, and a plan of successive fixes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence, Set

from msgspec.structs import replace

from breakeven.advise import Diagnosis, RuleInput, all_rules, diagnose, kept_findings
from breakeven.device import DeviceSpec, find_device
from breakeven.errors import BreakevenError, Caveat
from breakeven.report import (
    DEVICE_TRACK,
    EXPLAIN_SCHEMA_VERSION,
    HOST_TRACK,
    ExplainReport,
    PlanStep,
    RecordedStep,
    TimelineSpan,
)
from breakeven.simulate import Edit, Program, Side, Span, StepCause, WhatIf, build_program
from breakeven.source import Sources
from breakeven.studies.comparison import Comparison, compare_devices, step_summary
from breakeven.timing import Source
from breakeven.trace import (
    Copy,
    Event,
    FileWrites,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    ScaledTrace,
    ScalingError,
    Sync,
)
from breakeven.verdict import (
    DeviceKind,
    DeviceResult,
    HostSummary,
    ProgramFacts,
    program_of,
    rescaled,
)


def explained(
    compared: Comparison,
    device: DeviceSpec,
    *,
    target: str,
    host: HostSummary,
    recording: RecordedStep,
    rules: frozenset[str] | None = None,
    caveats: tuple[Caveat, ...] = (),
    program: ProgramFacts | None = None,
    num_steps: int | None = None,
    writes: FileWrites | None = None,
) -> ExplainReport:
    """Return the explanation of a step: findings, two timelines, and a plan of fixes.

    Args:
        compared: The step on every device.
        device: The device to explain the step on.
        target: The target as the user wrote it.
        host: The host that issues the work.
        recording: The stored step, with its measurements on the CPU.
        rules: Codes of the rules whose findings to report; None for all.
        caveats: Caveats on all figures.
        program: The script's time outside of its steps; None if not stored.
        num_steps: Steps of the training; None if unknown.
        writes: Files that a run of the script wrote.
    """
    sources, scaled = Sources.of(recording.sources), None
    if recording.other_size is not None:
        try:
            scaled = ScaledTrace(recording.trace, recording.other_size)
        except ScalingError:  # an earlier breakeven accepted the two steps as one
            scaled = None
    prediction = compared.prediction_on(device)
    what_if = WhatIf(compared.program, device, compared.host)
    case = RuleInput.of(
        compared.program, device, compared.host, sources=sources, scaled=scaled,
        cpu=recording.cpu, prediction=prediction,
    )  # fmt: skip
    found, of_findings = kept_findings(diagnose(case, what_if=what_if), case)
    wanted = [one for one in found if rules is None or one.finding.code in rules]
    timeline, cut = shortened(critical_timeline(compared.program, what_if))
    plan = cumulative_plan(
        compared,
        wanted,
        again=lambda changed, codes: diagnose(
            RuleInput.of(changed, device, compared.host, sources=sources), codes
        ),
    )
    return ExplainReport(
        schema_version=EXPLAIN_SCHEMA_VERSION,
        target=target,
        host=host,
        step=step_summary(compared, device),
        device=device.name,
        results=compared.results,
        verdict=compared.verdict,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        bound=prediction.bound,
        host_busy_ns=prediction.host_ns,
        device_busy_ns=prediction.device_busy_ns,
        attribution=what_if.attribution(),
        timeline=timeline,
        findings=tuple(one.finding for one in wanted),
        plan=plan,
        num_suppressed=len(found) - len(wanted),
        caveats=(*caveats, *of_findings, *cut),
        recording=recording,
        program=program and program_of(compared.verdict, compared.results, program, num_steps),
        writes=writes,
    )


def chosen_rules(names: Sequence[str]) -> frozenset[str] | None:
    """Return the codes of the named rules; None for all rules if none is named.

    Args:
        names: Codes (``SYNC001``) or causes (``SYNC_ITEM``), in upper or lower case.

    Raises:
        BreakevenError: If there is no such rule.
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


# A user would hardly apply more fixes in sequence.
_MAX_FIXES = 8


def cumulative_plan(
    compared: Comparison,
    diagnosed: Sequence[Diagnosis],
    *,
    again: Callable[[Program, Set[str]], Sequence[Diagnosis]],
) -> tuple[PlanStep, ...]:
    """Return the unchanged step, and the step after each further fix.

    If a fix changes an event that an earlier fix changed, then the rules run again on the changed
    step. A finding that has disappeared leaves the plan. The CPU's time is the measured one minus
    the host work that a fix removes, which is the same work there. Other effects of a fix on the
    CPU are unknown.

    Args:
        compared: The step.
        diagnosed: Findings in the order of their fixes; those without a simulated gain are left
            out.
        again: Returns the findings of some rules in a changed step.
    """
    fixes = [one for one in diagnosed if _is_part(one)][:_MAX_FIXES]
    codes = {one.finding.code for one in fixes}
    # The step to which the edit applies, and the host work removed before.
    base, edit, removed_ns, is_captured = compared.program, Edit(), 0, False
    # Findings in that step by place; None while the step is unchanged.
    found: dict[tuple[object, ...], Diagnosis] | None = None
    steps = [_plan_step(None, compared)]
    for one in fixes:
        fix = one if found is None else found.get(one.place)
        if fix is None:
            continue
        if _overlaps(edit, fix.match.edit):
            removed_ns += _removed_ns(base, edit)
            base, edit = base.edited(edit), Edit()
            found = {other.place: other for other in again(base, codes)}
            fix = found.get(one.place)
            if fix is None or not _is_part(fix):
                continue
        is_captured = is_captured or fix.match.scenario.is_captured
        if fix.match.edit is not None:
            edit = edit.then(fix.match.edit)
        left = _measured_after(compared.measured, removed_ns + _removed_ns(base, edit))
        fixed = base.edited(edit)
        after = compare_devices(
            fixed, compared.devices, compared.host, tuple(left), is_captured=is_captured
        )
        steps.append(_plan_step(one, after))
    return tuple(steps)


def _is_part(one: Diagnosis) -> bool:
    finding = one.finding
    return finding.side is Side.GPU and one.is_worth_it and finding.fixed_ns is not None


def _overlaps(one: Edit, other: Edit | None) -> bool:
    if other is None:
        return False
    both_set = one.settings is not None and other.settings is not None
    return both_set or not one.replaced.keys().isdisjoint(other.replaced)


def _removed_ns(program: Program, edit: Edit) -> int:
    """Return the time of removed host work; loader workers run in parallel and do not count."""
    return sum(
        event.duration_ns
        for index, event in enumerate(program.trace.events)
        if isinstance(event, HostWork) and not event.num_workers and not edit.event(index, event)
    )


def _measured_after(measured: Sequence[DeviceResult], removed_ns: int) -> Iterator[DeviceResult]:
    """Yield the measured results without the host work that fixes remove.

    A GPU of this machine was measured with the unchanged script; after a change it is predicted
    like all others, so its result is left out.
    """
    for result in measured:
        if result.kind is DeviceKind.CPU and removed_ns:
            # Recorded host work may take longer than in the measured run.
            factor = max(0.01, 1.0 - removed_ns / result.step_ns)
            shorter = rescaled(result, factor=factor)
            yield replace(shorter, source=Source.PREDICTED, num_samples=0)
        elif result.kind is DeviceKind.CPU:
            yield result


def _plan_step(one: Diagnosis | None, compared: Comparison) -> PlanStep:
    finding = one.finding if one else None
    return PlanStep(
        code=finding.code if finding else "",
        title=finding.title if finding else "the step as it is",
        file=finding.file if finding else None,
        line=finding.line if finding else None,
        side=Side.GPU,
        results=compared.results,
        verdict=compared.verdict,
    )


# Limit on the spans that a report stores; a trace file for a viewer gets all.
_MAX_SPANS = 4000


def full_timeline(report: ExplainReport) -> tuple[TimelineSpan, ...]:
    """Return all spans of an explained step, even if it is too long for a report.

    Raises:
        ValueError: If the report has no recording.
    """
    if report.recording is None:
        raise ValueError("a report without a recording has no timeline to complete")
    program = build_program(report.recording.trace)
    what_if = WhatIf(program, find_device(report.device), report.recording.host)
    return critical_timeline(program, what_if)


def critical_timeline(program: Program, what_if: WhatIf) -> tuple[TimelineSpan, ...]:
    """Return the spans of both timelines by start, and mark the critical ones.

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
    spans: tuple[TimelineSpan, ...],
) -> tuple[tuple[TimelineSpan, ...], tuple[Caveat, ...]]:
    """Return the longest spans in order, and a caveat if some were left out."""
    if len(spans) <= _MAX_SPANS:
        return spans, ()
    longest = sorted(spans, key=lambda span: span.start_ns - span.end_ns)[:_MAX_SPANS]
    kept = tuple(sorted(longest, key=lambda span: (span.start_ns, span.track)))
    message = (
        f"the timeline holds the {_MAX_SPANS} longest of {len(spans)} spans; all of them: "
        "--trace FILE"
    )
    return kept, (Caveat(code="timeline-cut", message=message),)


def _span(program: Program, span: Span, *, is_critical: bool) -> TimelineSpan:
    events = program.trace.events
    # The end of the step, with the time that no event covers, has no event.
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
        # A device may still run the previous step when the host begins this one.
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
