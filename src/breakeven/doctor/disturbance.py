"""Findings that hold even if other work on the machine disturbed what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from breakeven.device import HostSpec
from breakeven.doctor.diagnosis import Diagnosed, diagnose, is_worth_it
from breakeven.doctor.rule import Case
from breakeven.errors import Caveat
from breakeven.timing import BUSY_FRACTION, Estimate
from breakeven.trace import Event, HostWork, Op, RunFacts, ScaledTrace, StepTrace

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

_Place = tuple[str, str | None, int | None]


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


def examine(case: Case) -> Examined:
    """Return what `diagnose` finds, and would also find had nothing disturbed the measurements.

    Nobody knows by how much each of them is off: at most by what other processes took, and perhaps
    not at all. So the rules are asked again with each kind of figure as small as it may have been,
    and a finding has to come out every time, with a gain. Its interval then covers all of them.
    On a quiet machine they are asked once.
    """
    found = diagnose(case)
    if not found:
        return Examined(found=found)
    others = [{_place(one): one for one in diagnose(other)} for other in _undisturbed(case)]
    kept = [
        _widened(one, [other[_place(one)] for other in others])
        for one in found
        if all(_holds(one, other.get(_place(one))) for other in others)
    ]
    return Examined(found=tuple(kept), num_withheld=len(found) - len(kept))


def _undisturbed(case: Case) -> Iterator[Case]:
    """Yield the step with figures of one kind as small as they may have been in quiet."""
    trace, host, cpu, scaled = case.trace, case.host, case.cpu, case.scaled
    measured = partial(Case.of, device=case.device, costs=case.program.costs, sources=case.sources)
    if (slowdown := _slowdown(trace.facts.load_fraction)) > 1.0:
        at_sizes = scaled and ScaledTrace(
            _quiet_trace(scaled.first, slowdown), _quiet_trace(scaled.second, slowdown)
        )
        yield measured(_quiet_trace(trace, slowdown), host=host, scaled=at_sizes, cpu=cpu)
    if (slowdown := _slowdown(host.load_fraction)) > 1.0:
        slowdown = min(slowdown, _MAX_SLOWDOWN_OF_OPERATORS)
        quiet = cpu and replace(cpu, dispatch_ns=cpu.dispatch_ns / slowdown)
        yield measured(trace, host=_quiet_host(host, slowdown), scaled=scaled, cpu=quiet)
    if cpu is not None and (slowdown := _slowdown(cpu.load_fraction)) > 1.0:
        quiet = replace(cpu, estimate=_shorter(cpu.estimate, slowdown))
        yield measured(trace, host=host, scaled=scaled, cpu=quiet)


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


def _place(one: Diagnosed) -> _Place:
    return one.finding.code, one.finding.file, one.finding.line


def _holds(one: Diagnosed, other: Diagnosed | None) -> bool:
    """Return whether a finding comes out under other figures too, with a gain where it had one."""
    return other is not None and (is_worth_it(other.finding) or not is_worth_it(one.finding))


def _widened(one: Diagnosed, others: list[Diagnosed]) -> Diagnosed:
    finding = one.finding
    all_findings = [finding, *(other.finding for other in others)]
    changed = replace(
        finding,
        gain_low_fraction=min(own.gain_low_fraction for own in all_findings),
        gain_high_fraction=max(own.gain_high_fraction for own in all_findings),
    )
    return Diagnosed(finding=changed, occurrence=one.occurrence)
