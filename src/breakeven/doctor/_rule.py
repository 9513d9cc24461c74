"""What a rule of the doctor is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from breakeven.simulate import TYPICAL, Edit, Program, Scenario, StepPrediction
from breakeven.trace import Location, StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step on the device on which it is examined.

    Args:
        trace: The step.
        program: Its kernels.
        prediction: What it takes on that device, and what limits it.
    """

    trace: StepTrace
    program: Program
    prediction: StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One place at which a rule applies.

    Args:
        title: One line for a person.
        fix: What to change.
        location: The user's line, where there is one.
        events: Positions of the events that make it up; their time is the finding's share.
        edit: The step after the fix; None where only circumstances change.
        scenario: Circumstances after the fix.
        share_fraction: Part of the step that it takes, where events do not tell.
    """

    title: str
    fix: str
    location: Location | None = None
    events: tuple[int, ...] = ()
    edit: Edit = field(default_factory=Edit)
    scenario: Scenario = TYPICAL
    share_fraction: float | None = None


class Rule(Protocol):
    """One reason why a GPU is slower than it could be. The docstring of a rule is its page."""

    code: ClassVar[str]
    """Stable code, such as ``SYNC001``."""

    cause: ClassVar[str]
    """Root cause that the rule detects, such as ``SYNC_ITEM``."""

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return the places at which the rule applies; none in a healthy step."""
        ...


def by_line(trace: StepTrace, events: list[int]) -> list[tuple[Location | None, tuple[int, ...]]]:
    """Return positions of events grouped by the user's line, in the order of the first of each."""
    groups: dict[tuple[str, int] | None, list[int]] = {}
    for index in events:
        location = trace.events[index].location
        key = (location.file, location.line) if location else None
        groups.setdefault(key, []).append(index)
    return [(trace.events[group[0]].location, tuple(group)) for group in groups.values()]


def times_per_step(count: int) -> str:
    """Return how often something happens, as text."""
    return "in every step" if count == 1 else f"{count} times in every step"
