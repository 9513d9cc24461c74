"""Findings: where the rules apply, and what each fix would gain."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.doctor.framework import fix_of, frames_below
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.rules import all_rules
from breakeven.simulate import (
    Finding,
    Severity,
    Side,
    Timeline,
    WhatIf,
    WhatIfResult,
)

_ROUNDING = 1e-9
# Part of the step from which a gain is high, medium or low. A fifth is what people rent a larger
# device for; under a hundredth no measurement on a shared machine shows it.
_HIGH_FRACTION, _MEDIUM_FRACTION, _LOW_FRACTION = 0.2, 0.05, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """A finding, and the change of the step that its figures are of.

    Args:
        finding: What every report shows.
        occurrence: What the rule found.
    """

    finding: Finding
    occurrence: Occurrence


def diagnose(case: Case) -> tuple[Diagnosed, ...]:
    """Return what slows a step down on its device, by what its fix would gain.

    Each gain is that of its fix alone, from simulating the step with and without it; gains of
    several fixes do not add up. Lines that would raise come first, whatever else there is.

    Args:
        case: The step as a GPU would run it, on the GPU on which gains are simulated.
    """
    what_if = WhatIf(case.program, case.device, case.host)
    found = [
        Diagnosed(finding=_finding(case, rule, occurrence, what_if), occurrence=occurrence)
        for rule in all_rules()
        for occurrence in rule.detect(case)
    ]
    return tuple(sorted(found, key=lambda one: _rank(one.finding)))


def _finding(case: Case, rule: Rule, occurrence: Occurrence, what_if: WhatIf) -> Finding:
    result = _simulated(occurrence, what_if)
    gain = occurrence.gain
    if result is not None:
        fractions = (result.gain_fraction, result.gain_low_fraction, result.gain_high_fraction)
    elif gain is not None:
        fractions = (gain.fraction, gain.low_fraction, gain.high_fraction)
    else:
        fractions = (0.0, 0.0, 0.0)
    value, low, high = (_clipped(fraction) for fraction in fractions)
    location = occurrence.location
    return Finding(
        code=rule.code,
        cause=rule.cause,
        title=occurrence.title,
        file=location.file if location else None,
        line=location.line if location else None,
        share_fraction=_share(occurrence, what_if.timeline),
        gain_fraction=value,
        gain_low_fraction=min(low, value),
        gain_high_fraction=max(high, value),
        severity=_severity(occurrence, value),
        side=occurrence.side,
        evidence=occurrence.evidence,
        fix=fix_of(case, rule.code, occurrence),
        fixed_ns=None if result is None else result.fixed.value_ns,
        fixed_low_ns=None if result is None else result.fixed.low_ns,
        fixed_high_ns=None if result is None else result.fixed.high_ns,
        frames=frames_below(case, occurrence),
    )


def is_worth_it(finding: Finding) -> bool:
    """Return whether the fix saves an amount that a person would notice."""
    return finding.severity in (Severity.HIGH, Severity.MEDIUM, Severity.LOW)


def _simulated(occurrence: Occurrence, what_if: WhatIf) -> WhatIfResult | None:
    """Return the step after the fix; None where the rule gives no change to simulate."""
    if occurrence.edit is None and occurrence.scenario == what_if.scenario:
        return None
    return what_if.fixed(occurrence.edit, occurrence.scenario)


def _severity(occurrence: Occurrence, gain_fraction: float) -> Severity:
    if occurrence.is_error:
        return Severity.ERROR
    if gain_fraction >= _HIGH_FRACTION:
        return Severity.HIGH
    if gain_fraction >= _MEDIUM_FRACTION:
        return Severity.MEDIUM
    return Severity.LOW if gain_fraction >= _LOW_FRACTION else Severity.INFO


def _rank(finding: Finding) -> tuple[bool, bool, float]:
    # Gains on the GPU and on the CPU are parts of different steps.
    is_error = finding.severity is Severity.ERROR
    return (not is_error, finding.side is not Side.GPU, -finding.gain_fraction)


def _share(occurrence: Occurrence, timeline: Timeline) -> float:
    """Return the part of the step that the occurrence takes on the busier of the timelines."""
    if occurrence.share_fraction is not None:
        return _clipped(occurrence.share_fraction)
    events = frozenset(occurrence.events)
    spent = [
        sum(
            span.end_ns - span.start_ns
            for span in timeline.spans
            if span.event in events and span.is_on_device is is_on_device
        )
        for is_on_device in (False, True)
    ]
    return _clipped(max(spent) / timeline.step_ns) if timeline.step_ns > 0 else 0.0


def _clipped(fraction: float) -> float:
    # Two simulations of one step differ in their last digits.
    return min(1.0, fraction) if fraction > _ROUNDING else 0.0
