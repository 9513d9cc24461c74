"""Findings: where the rules apply, what each fix would gain, and what a busy machine blurs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from breakeven.device import HostSpec
from breakeven.doctor.framework import fix_of, frames_below
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.rules import all_rules
from breakeven.errors import Caveat
from breakeven.simulate import Finding, Severity, Side, WhatIf, WhatIfResult, predict_steps
from breakeven.timing import BUSY_FRACTION, Estimate
from breakeven.trace import Event, HostWork, Op, RunFacts, ScaledTrace, StepTrace

_ROUNDING = 1e-9
# Part of the step from which a gain is high, medium or low. A fifth is what people rent a larger
# device for; under a hundredth no measurement on a shared machine shows it.
_HIGH_FRACTION, _MEDIUM_FRACTION, _LOW_FRACTION = 0.2, 0.05, 0.01
# A process that shares all processors gets what others leave. Beyond this factor the figures say
# next to nothing, and what they still show is plain anyway.
_MAX_SLOWDOWN: Final = 10.0
# Costs of an operator are medians of microseconds, which a turn of another process misses; what
# others do to caches, clock and twin threads remains.
_MAX_SLOWDOWN_OF_OPERATORS: Final = 2.0
# Gaps between operators that are shorter may be nothing but another process's turn.
# Source: up to three slices of 3 ms, the base slice of Linux with up to eight processors.
_TURN_NS: Final = 10_000_000
_SCRIPT: Final = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """A finding, and the change of the step that its figures are of.

    Args:
        finding: What every report shows.
        occurrence: What the rule found.
    """

    finding: Finding
    occurrence: Occurrence

    @property
    def place(self) -> tuple[str, str | None, int | None]:
        """Return rule and line, by which it is found again in a step under other figures."""
        return self.finding.code, self.finding.file, self.finding.line

    @property
    def is_worth_it(self) -> bool:
        """Return whether the fix saves an amount that a person would notice."""
        return self.finding.severity in (Severity.HIGH, Severity.MEDIUM, Severity.LOW)


def diagnose(
    case: Case, codes: Set[str] | None = None, what_if: WhatIf | None = None
) -> tuple[Diagnosed, ...]:
    """Return what slows a step down on its device, by what its fix would gain.

    Each gain is that of its fix alone, from simulating the step with and without it; gains of
    several fixes do not add up. Lines that would raise come first, whatever else there is.

    Args:
        case: The step as a GPU would run it, on the GPU on which gains are simulated.
        codes: Rules to ask; all by default.
        what_if: The same step on the same device, where it is there already.
    """
    what_if = what_if or WhatIf(case.program, case.device, case.host)
    found = [
        Diagnosed(finding=_finding(case, rule, occurrence, what_if), occurrence=occurrence)
        for rule in all_rules()
        if codes is None or rule.code in codes
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
        share_fraction=_share(occurrence, what_if),
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


def _share(occurrence: Occurrence, what_if: WhatIf) -> float:
    """Return the part of the step that the occurrence takes on the busier of the timelines."""
    if occurrence.share_fraction is not None:
        return _clipped(occurrence.share_fraction)
    events, step_ns = sorted(set(occurrence.events)), what_if.timeline.step_ns
    spent = (sum(own.get(index, 0.0) for index in events) for own in what_if.spent_ns)
    return _clipped(max(spent) / step_ns) if step_ns > 0 else 0.0


def _clipped(fraction: float) -> float:
    # Two simulations of one step differ in their last digits.
    return min(1.0, fraction) if fraction > _ROUNDING else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What slows a step down.

    Args:
        found: As `diagnose` gives it.
        num_withheld: Findings that rest on what other work disturbed, and are not among them.
    """

    found: tuple[Diagnosed, ...]
    num_withheld: int = 0

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return what to say of findings that are not shown."""
        if not self.num_withheld:
            return ()
        rest, are = ("finding rests", "is") if self.num_withheld == 1 else ("findings rest", "are")
        message = (
            f"{self.num_withheld} {rest} on a measurement that other work on this machine "
            f"disturbed, and {are} not shown; try again when it is idle"
        )
        return (Caveat(code="disturbed-findings", message=message),)


def examine(case: Case, what_if: WhatIf | None = None) -> Examined:
    """Return what `diagnose` finds, and would also find had nothing disturbed the measurements.

    Nobody knows by how much each of them is off: at most by what other processes took, and perhaps
    not at all. So the rules are asked again with each kind of figure as small as it may have been,
    and a finding has to come out every time, with a gain. Its interval then covers all of them.
    On a quiet machine they are asked once.

    Args:
        case: As `diagnose` is given it.
        what_if: As it.
    """
    found = diagnose(case, what_if=what_if)
    if not found:
        return Examined(found=found)
    codes = {one.finding.code for one in found}
    others = [{one.place: one for one in diagnose(other, codes)} for other in _undisturbed(case)]
    kept = [
        _widened(one, [other[one.place] for other in others])
        for one in found
        if all(_holds(one, other.get(one.place)) for other in others)
    ]
    return Examined(found=tuple(kept), num_withheld=len(found) - len(kept))


def _undisturbed(case: Case) -> Iterator[Case]:
    """Yield the step with figures of one kind as small as they may have been in quiet."""
    trace, host, cpu, scaled = case.trace, case.host, case.cpu, case.scaled
    if (slowdown := _slowdown(trace.facts.load_fraction)) > 1.0:
        at_sizes = scaled and ScaledTrace(
            _quiet_trace(scaled.first, slowdown), _quiet_trace(scaled.second, slowdown)
        )
        quiet_step = dataclasses.replace(case.program, trace=_quiet_trace(trace, slowdown))
        yield Case.of(quiet_step, case.device, host, sources=case.sources, scaled=at_sizes, cpu=cpu)
    if (slowdown := _slowdown(host.load_fraction)) > 1.0:
        slowdown = min(slowdown, _MAX_SLOWDOWN_OF_OPERATORS)
        quiet = cpu and replace(cpu, dispatch_ns=cpu.dispatch_ns / slowdown)
        quieter = _quiet_host(host, slowdown)
        (prediction,) = predict_steps(case.program, (case.device,), quieter)
        yield dataclasses.replace(case, host=quieter, prediction=prediction, cpu=quiet)
    if cpu is not None and (slowdown := _slowdown(cpu.load_fraction)) > 1.0:
        quiet = replace(cpu, estimate=_shorter(cpu.estimate, slowdown))
        yield dataclasses.replace(case, cpu=quiet)


def _slowdown(load_fraction: float) -> float:
    """Return how many times as long a measurement may have taken; 1 on a quiet machine."""
    if load_fraction <= BUSY_FRACTION:
        return 1.0
    return min(_MAX_SLOWDOWN, 1.0 / max(1.0 - load_fraction, 1.0 / _MAX_SLOWDOWN))


def _quiet_trace(trace: StepTrace, slowdown: float) -> StepTrace:
    loading = min(slowdown, _slowdown_of_loading(trace.facts))
    return replace(
        trace,
        events=tuple(
            _quiet_event(event, loading if _is_loading(event) else slowdown)
            for event in trace.events
        ),
        facts=_quiet_facts(trace.facts, slowdown, loading),
    )


def _slowdown_of_loading(facts: RunFacts) -> float:
    """Return how many times as long loading may have taken, by the processor time that it had."""
    fetches = [(own.fetch_ns, own.fetch_cpu_ns) for own in facts.loaders if own.fetch_cpu_ns]
    ratios = [wall_ns / cpu_ns for wall_ns, cpu_ns in fetches]
    return max(1.0, *ratios) * _MAX_SLOWDOWN_OF_OPERATORS if ratios else _MAX_SLOWDOWN


def _is_loading(event: Event) -> bool:
    return isinstance(event, HostWork) and event.kind == "data"


def _quiet_event(event: Event, slowdown: float) -> Event:
    if isinstance(event, Op):
        return replace(event, host_ns=round(event.host_ns / slowdown)) if event.host_ns else event
    if not isinstance(event, HostWork):
        return event
    turn_ns = _TURN_NS if event.kind == _SCRIPT else 0
    return replace(event, duration_ns=round(max(0, event.duration_ns - turn_ns) / slowdown))


def _quiet_facts(facts: RunFacts, slowdown: float, loading: float) -> RunFacts:
    return replace(
        facts,
        loaders=tuple(
            replace(loader, fetch_ns=round(loader.fetch_ns / loading)) for loader in facts.loaders
        ),
        calls=tuple(
            replace(call, duration_ns=round(call.duration_ns / slowdown)) for call in facts.calls
        ),
    )


def _quiet_host(host: HostSpec, slowdown: float) -> HostSpec:
    return replace(
        host,
        **{
            name: value / slowdown
            for name in host.__struct_fields__
            if name.endswith("_ns") and isinstance(value := getattr(host, name), float)
        },
    )


def _shorter(estimate: Estimate, slowdown: float) -> Estimate:
    return replace(
        estimate,
        value_ns=estimate.value_ns / slowdown,
        low_ns=estimate.low_ns / slowdown,
        high_ns=estimate.high_ns / slowdown,
    )


def _holds(one: Diagnosed, other: Diagnosed | None) -> bool:
    """Return whether a finding comes out under other figures too, with a gain where it had one."""
    return other is not None and (other.is_worth_it or not one.is_worth_it)


def _widened(one: Diagnosed, others: list[Diagnosed]) -> Diagnosed:
    finding = one.finding
    all_findings = [finding, *(other.finding for other in others)]
    changed = replace(
        finding,
        gain_low_fraction=min(own.gain_low_fraction for own in all_findings),
        gain_high_fraction=max(own.gain_high_fraction for own in all_findings),
    )
    return Diagnosed(finding=changed, occurrence=one.occurrence)
