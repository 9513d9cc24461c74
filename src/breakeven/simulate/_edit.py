"""What-ifs: a step with some of its events removed or replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from breakeven.trace import Event, StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of a step, by the positions of its events.

    Args:
        replaced: New events by the position of the one they take the place of; none to remove it.
    """

    replaced: Mapping[int, tuple[Event, ...]] = field(default_factory=dict[int, tuple[Event, ...]])

    def event(self, index: int, event: Event) -> tuple[Event, ...]:
        """Return what stands in the place of the event at ``index``."""
        return self.replaced.get(index, (event,))

    def apply(self, trace: StepTrace) -> StepTrace:
        """Return the changed step."""
        events = tuple(
            kept for index, event in enumerate(trace.events) for kept in self.event(index, event)
        )
        return msgspec.structs.replace(trace, events=events)


def remove_events(trace: StepTrace, predicate: Callable[[Event], bool]) -> Edit:
    """Return the edit that removes the events for which ``predicate`` holds."""
    return Edit(replaced={i: () for i, event in enumerate(trace.events) if predicate(event)})


def replace_events(trace: StepTrace, change: Callable[[Event], Event]) -> Edit:
    """Return the edit that puts ``change(event)`` in the place of each event it changes."""
    changed = ((i, event, change(event)) for i, event in enumerate(trace.events))
    return Edit(replaced={i: (new,) for i, event, new in changed if new is not event})
