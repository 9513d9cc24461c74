"""Findings: where the rules apply, and what each fix would gain."""

from __future__ import annotations

from breakeven.device import DeviceSpec, HostSpec
from breakeven.doctor._copy_rules import BlockingCopy, CreatedOnHost
from breakeven.doctor._device_rules import NeverOnDevice, RaisesOnDevice
from breakeven.doctor._host_rules import LoadingInProcess, ScriptWork
from breakeven.doctor._launch_rules import LaunchFloor
from breakeven.doctor._optimizer_rules import ParameterLoop
from breakeven.doctor._rule import Case, Occurrence, Rule
from breakeven.doctor._sync_rules import (
    ExplicitSync,
    HostReadsTensor,
    HostReadsValue,
    SizeFromValues,
)
from breakeven.simulate import (
    CostModel,
    Finding,
    Timeline,
    build_program,
    predict_steps,
    simulate,
)
from breakeven.trace import StepTrace

_ROUNDING = 1e-9

_RULES: tuple[Rule, ...] = (
    RaisesOnDevice(),
    NeverOnDevice(),
    LaunchFloor(),
    HostReadsValue(),
    ExplicitSync(),
    SizeFromValues(),
    HostReadsTensor(),
    BlockingCopy(),
    CreatedOnHost(),
    ParameterLoop(),
    LoadingInProcess(),
    ScriptWork(),
)


def all_rules() -> tuple[Rule, ...]:
    """Return every rule; the docstring of its class is its page."""
    return _RULES


def diagnose(
    trace: StepTrace, device: DeviceSpec, host: HostSpec, *, costs: CostModel | None = None
) -> tuple[Finding, ...]:
    """Return what slows the step down on ``device``, by what its fix would gain.

    Each gain is that of its fix alone, from simulating the step with and without it; gains of
    several fixes do not add up. Lines that would raise come first, whatever else there is.

    Args:
        trace: The step as a GPU would run it.
        device: The GPU on which gains are simulated.
        host: What issues the work.
        costs: The cost model; that which ships by default.
    """
    program = build_program(trace, costs=costs)
    (prediction,) = predict_steps(trace, (device,), host, costs=costs)
    case = Case(trace=trace, program=program, prediction=prediction)
    timeline = simulate((program,), (device,), host).timeline()

    def gain_fraction(occurrence: Occurrence) -> float:
        fixed = simulate(
            (program.edited(occurrence.edit),), (device,), host, scenarios=(occurrence.scenario,)
        )
        return _fraction(timeline.step_ns - float(fixed.step_ns.flat[0]), timeline.step_ns)

    findings = [
        Finding(
            code=rule.code,
            cause=rule.cause,
            title=occurrence.title,
            file=occurrence.location.file if occurrence.location else None,
            line=occurrence.location.line if occurrence.location else None,
            share_fraction=_share(occurrence, timeline),
            gain_fraction=gain_fraction(occurrence),
            fix=occurrence.fix,
        )
        for rule in all_rules()
        for occurrence in rule.detect(case)
    ]
    return tuple(sorted(findings, key=_rank))


def _rank(finding: Finding) -> tuple[bool, float]:
    return (finding.code != RaisesOnDevice.code, -finding.gain_fraction)


def _share(occurrence: Occurrence, timeline: Timeline) -> float:
    """Return the part of the step that the occurrence takes on the busier of the timelines."""
    if occurrence.share_fraction is not None:
        return occurrence.share_fraction
    events = frozenset(occurrence.events)
    spent = [
        sum(
            span.end_ns - span.start_ns
            for span in timeline.spans
            if span.event in events and span.is_on_device is is_on_device
        )
        for is_on_device in (False, True)
    ]
    return _fraction(max(spent), timeline.step_ns)


def _fraction(part_ns: float, step_ns: float) -> float:
    if step_ns <= 0:
        return 0.0
    fraction = part_ns / step_ns
    # Two simulations of one step differ in their last digits.
    return min(1.0, fraction) if fraction > _ROUNDING else 0.0
