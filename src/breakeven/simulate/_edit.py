"""What-ifs: a step with some of its events removed or replaced."""

from __future__ import annotations

from collections.abc import Mapping
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
