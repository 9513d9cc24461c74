"""One fix after another: the step on every device after each, and where to train then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from breakeven.doctor import Diagnosed
from breakeven.session import ComparedStep
from breakeven.simulate import Edit, Side
from breakeven.timing import Source
from breakeven.trace import HostWork, StepTrace
from breakeven.verdict import DeviceKind, DeviceResult, PlanStep, rescaled

# Fixes that a person would still do one after the other.
_MAX_FIXES = 8


def cumulative_plan(
    step: ComparedStep,
    diagnosed: Sequence[Diagnosed],
    *,
    again: Callable[[StepTrace], Sequence[Diagnosed]],
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
        again: Returns the findings of a changed step.
    """
    fixes = [one for one in diagnosed if _is_part(one)][:_MAX_FIXES]
    fixed = _FixedStep(step.trace)
    steps = [_plan_step(None, step)]
    for one in fixes:
        if fixed.apply(one, again):
            left = _measured_after(step.measured, fixed.removed_ns)
            changed = step.changed(fixed.trace, left, is_captured=fixed.is_captured)
            steps.append(_plan_step(one, changed))
    return tuple(steps)


class _FixedStep:
    """A step to which one fix after another is applied."""

    def __init__(self, trace: StepTrace) -> None:
        self._base = trace
        self._edit = Edit()
        self._removed_before_ns = 0
        # Findings of the present base, by where they are; None while it is the step as it was.
        self._found: dict[tuple[object, ...], Diagnosed] | None = None
        self.is_captured = False

    @property
    def trace(self) -> StepTrace:
        """Return the step with all fixes so far."""
        return self._edit.apply(self._base)

    @property
    def removed_ns(self) -> int:
        """Return the host's own work that is gone; that of loader workers runs beside the step."""
        return self._removed_before_ns + sum(
            event.duration_ns
            for index, event in enumerate(self._base.events)
            if isinstance(event, HostWork)
            and not event.num_workers
            and not self._edit.event(index, event)
        )

    def apply(self, one: Diagnosed, again: Callable[[StepTrace], Sequence[Diagnosed]]) -> bool:
        """Apply a fix; return whether there was anything left of its finding."""
        found = one if self._found is None else self._found.get(one.place)
        if found is None:
            return False
        if self._overlaps(found.occurrence.edit):
            self._removed_before_ns = self.removed_ns
            self._base, self._edit = self.trace, Edit()
            self._found = {other.place: other for other in again(self._base)}
            found = self._found.get(one.place)
            if found is None or not _is_part(found):
                return False
        self.is_captured = self.is_captured or found.occurrence.scenario.is_captured
        if found.occurrence.edit is not None:
            self._edit = self._edit.then(found.occurrence.edit)
        return True

    def _overlaps(self, edit: Edit | None) -> bool:
        if edit is None:
            return False
        both_set = edit.settings is not None and self._edit.settings is not None
        return both_set or not self._edit.replaced.keys().isdisjoint(edit.replaced)


def _is_part(one: Diagnosed) -> bool:
    finding = one.finding
    return finding.side is Side.GPU and one.is_worth_it and finding.fixed_ns is not None


def _plan_step(one: Diagnosed | None, step: ComparedStep) -> PlanStep:
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
