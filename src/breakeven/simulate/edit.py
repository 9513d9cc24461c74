"""What-ifs: a step with some of its events removed or replaced, or under other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from breakeven.trace import Event, RunFacts, Settings, StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of a step, by the positions of its events.

    Args:
        replaced: New events by the position of the one they take the place of; none to remove it.
        settings: torch's switches after the change; None to leave them.
    """

    replaced: Mapping[int, tuple[Event, ...]] = field(default_factory=dict[int, tuple[Event, ...]])
    settings: Settings | None = None

    def event(self, index: int, event: Event) -> tuple[Event, ...]:
        """Return what stands in the place of the event at ``index``."""
        return self.replaced.get(index, (event,))

    def apply(self, trace: StepTrace) -> StepTrace:
        """Return the changed step."""
        events = tuple(
            kept for index, event in enumerate(trace.events) for kept in self.event(index, event)
        )
        settings = trace.settings if self.settings is None else self.settings
        return msgspec.structs.replace(
            trace, events=events, settings=settings, facts=self._moved_facts(trace)
        )

    def _moved_facts(self, trace: StepTrace) -> RunFacts:
        """Return what is known of the run, with calls of models where their events are now."""
        if not trace.facts.model_calls:
            return trace.facts
        lengths = (len(self.event(index, event)) for index, event in enumerate(trace.events))
        starts = (0, *accumulate(lengths))
        calls = tuple(
            msgspec.structs.replace(
                call,
                first_event=starts[call.first_event],
                num_events=starts[call.first_event + call.num_events] - starts[call.first_event],
            )
            for call in trace.facts.model_calls
        )
        return msgspec.structs.replace(trace.facts, model_calls=calls)

    def then(self, other: Edit) -> Edit:
        """Return both changes of the same step as one; where both replace an event, this one wins.

        Args:
            other: A change by positions of the same, unchanged step.
        """
        return Edit(
            replaced={**other.replaced, **self.replaced},
            settings=other.settings if self.settings is None else self.settings,
        )
