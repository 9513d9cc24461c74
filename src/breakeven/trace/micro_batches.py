"""Over how many batches a step accumulates its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.trace.events import Event, Op, Phase
from breakeven.trace.step_trace import ModelCall


def num_micro_batches(events: Sequence[Event], calls: Sequence[ModelCall]) -> int:
    """Return the batches of a step that the same line hands to a model, each with its backward.

    1 where the calls are something else: time steps before one backward pass, parts of a GAN, or
    the evaluations of a line search, between which weights are changed.

    Args:
        events: Of the step.
        calls: Of whole models within it, by their positions in ``events``.
    """
    trained = [call for call in calls if call.has_grad]
    if len({(call.model, call.location, call.num_samples) for call in trained}) != 1:
        return 1
    ends = [*(call.first_event for call in trained[1:]), len(events)]
    for call, end in zip(trained, ends, strict=True):
        between = _phases(events[call.first_event + call.num_events : end])
        is_last = end == len(events)
        if Phase.BACKWARD not in between or (Phase.OPTIMIZER in between and not is_last):
            return 1
    return len(trained)


def _phases(events: Sequence[Event]) -> set[Phase]:
    return {event.phase for event in events if isinstance(event, Op)}
