"""One fix after another: the step on every device after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

from msgspec.structs import replace

from breakeven.advise import Diagnosis
from breakeven.simulate import Edit, Program, Side
from breakeven.studies.comparison import Comparison, compare_devices
from breakeven.timing import Source
from breakeven.trace import HostWork
from breakeven.verdict import DeviceKind, DeviceResult, PlanStep, rescaled

# Fixes that a person would still do one after the other.
_MAX_FIXES = 8


def cumulative_plan(
    compared: Comparison,
    diagnosed: Sequence[Diagnosis],
    *,
    again: Callable[[Program, Set[str]], Sequence[Diagnosis]],
) -> tuple[PlanStep, ...]:
    """Return the step as it is, and after one more fix each.

    If a fix changes events that one before it has changed, the rules are asked again about the
    step as it is by then; a finding that is gone is no part of the plan. The CPU's own time is the
    measured one, less the work of the host that a fix removes, since that is the same work there;
    what else a fix changes on the CPU is not known.

    Args:
        compared: The step.
        diagnosed: Findings in the order in which they are fixed; those without a simulated gain
            are left out.
        again: Returns the findings of some rules in a changed step.
    """
    fixes = [one for one in diagnosed if _is_part(one)][:_MAX_FIXES]
    codes = {one.finding.code for one in fixes}
    # The step that the edit is of, and the work of the host that was removed before.
    base, edit, removed_ns, is_captured = compared.program, Edit(), 0, False
    # Findings in that step, by where they are; None while it is the step as it was.
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
    """Return the host's own work that is gone; that of loader workers runs beside the step."""
    return sum(
        event.duration_ns
        for index, event in enumerate(program.trace.events)
        if isinstance(event, HostWork) and not event.num_workers and not edit.event(index, event)
    )


def _measured_after(measured: Sequence[DeviceResult], removed_ns: int) -> Iterator[DeviceResult]:
    """Yield the measured results without the host's work that fixes remove.

    A GPU that is here was measured with everything in the script; after a change it is predicted
    like all others, so its result is left out.
    """
    for result in measured:
        if result.kind is DeviceKind.CPU and removed_ns:
            # Work of the host that was recorded may be longer than it was in the measured run.
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
