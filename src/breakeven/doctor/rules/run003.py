"""RUN003: the model is evaluated in every training step.

What it does:
    Finds calls of a model within the training step whose results the backward pass never
    reaches, in evaluation mode or at lines that say so (``evaluate``, ``x_val``,
    ``accuracy``).

Why it costs time:
    Each adds a forward pass over other data to the step, often with a batch of its own size,
    and reads the result on the host. Without ``torch.no_grad()`` it also records what no
    backward pass ever uses.

Evidence:
    Validation took twenty times as long as an epoch in a public report.

Fix:
    Evaluate once per epoch or every n-th step, under ``torch.no_grad()``.

    ```python
    for step, (x, y) in enumerate(loader):
        train_step(x, y)
        print(accuracy(model, x_val, y_val))
    ```

    ```python
    for step, (x, y) in enumerate(loader):
        train_step(x, y)
        if step % 500 == 499:
            with torch.no_grad():
                print(accuracy(model, x_val, y_val))
    ```

Known limits:
    Models whose output the loss reads (target networks, teachers, frozen parts) and those that
    choose actions in training mode are no evaluation. Validation once per epoch is not part of
    the recorded step, however short the epoch. The gain shown assumes that evaluating is so
    rare that it no longer counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from breakeven.doctor.events import line_of
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.doctor.source_lines import trainer_setting
from breakeven.trace import Copy, Event, Location, ModelCall, Op, Phase, StepTrace, Sync

CAUSE = "EVAL_OFTEN"

_MIN_SHARE_FRACTION = 0.05

# Names that say what a model is run for: `evaluate`, `val_loader`, `x_test`, `accuracy_of`.
_EVALUATES = re.compile(
    r"(?:^|[^a-z])(?:eval\w*|val|valid\w*|test|holdout|heldout|accuracy|acc|metrics?)(?:$|[^a-z])",
    re.IGNORECASE,
)
# Names of what needs the model's answer in order to go on: `act`, `select_action`, `rollout`.
_ACTS = re.compile(
    r"(?:^|[^a-z])(?:acts?|actions?|acting|rollouts?|explore\w*|sampl\w*|generate\w*|self_?play)"
    r"(?:$|[^a-z])",
    re.IGNORECASE,
)
_SETTINGS = ("val_check_interval", "eval_steps", "eval_strategy", "evaluation_strategy")


def detect(case: Case) -> Found:
    trace, calls = case.trace, case.facts.model_calls
    trained = next((call for call in calls if call.is_used_in_backward), None)
    if trained is None:
        return
    way = _stack(trace, trained)
    found: dict[tuple[str, int] | None, list[ModelCall]] = {}
    places: dict[tuple[str, int] | None, Location | None] = {}
    # Calls that are made in one way are followed together.
    groups: dict[tuple[int, Location | None], list[ModelCall]] = {}
    for call in calls:
        if not call.is_used_in_backward and _is_meant(case, call):
            groups.setdefault((call.stack, call.location), []).append(call)
    for group in groups.values():
        if not _trains(trace, group):
            place = _line_in_loop(trace, group[0], way)
            places[line_of(place)] = place
            found.setdefault(line_of(place), []).extend(group)
    for line, own in found.items():
        # Below a line that starts a trainer's loop lies the training as well.
        below = None if line in map(line_of, way) else line
        events = _events_of(trace, own, below)
        if len(events) < _MIN_SHARE_FRACTION * len(trace.events):
            continue
        records = " and recorded for a backward pass" if any(call.has_grad for call in own) else ""
        often = "" if len(own) == 1 else f" {len(own)} times"
        # A trainer that calls the model may have a setting for how often to evaluate.
        settings = (trainer_setting(case, at, *_SETTINGS) for at in _stack(trace, own[0]))
        yield Occurrence(
            title=f"{own[0].model} is evaluated{often} in every training step{records}",
            fix="evaluate once per epoch or every n-th step, under torch.no_grad()",
            evidence=f"{len(events)} of {len(trace.events)} events of the step are forward passes "
            "that no gradient reaches, and what follows from them",
            location=next((at for at in settings if at is not None), places[line]),
            events=events,
            edit=without(events),
        )


def _is_meant(case: Case, call: ModelCall) -> bool:
    """Return whether a call looks like an evaluation, by names and the model's mode."""
    words = _words(case, call)
    is_named = any(map(_EVALUATES.search, words))
    is_acting = any(map(_ACTS.search, words))
    return is_named or (not call.is_training and not is_acting)


def _words(case: Case, call: ModelCall) -> list[str]:
    """Return the names of the functions that led to a call, and the line that makes it."""
    words = [location.function for location in _stack(case.trace, call)]
    source = case.sources.find(call.location)
    if source is not None and call.location is not None:
        words += source.lines[call.location.line - 1 : call.location.line]
    return words


def _stack(trace: StepTrace, call: ModelCall) -> tuple[Location, ...]:
    if 0 <= call.stack < len(trace.stacks):
        return trace.stacks[call.stack]
    return (call.location,) if call.location else ()


def _line_in_loop(trace: StepTrace, call: ModelCall, way: tuple[Location, ...]) -> Location | None:
    """Return the line at which the way to the evaluation parts from that to the training."""
    for depth, location in enumerate(_stack(trace, call)):
        if depth >= len(way) or line_of(location) != line_of(way[depth]):
            return location
    return call.location


def _trains(trace: StepTrace, calls: Sequence[ModelCall]) -> bool:
    """Return whether the backward pass or the optimizer reads anything that follows from calls."""
    following = (trace.events[index] for index in _following(trace, calls))
    return any(
        isinstance(event, Op) and event.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        for event in following
    )


def _following(trace: StepTrace, calls: Sequence[ModelCall]) -> list[int]:
    """Return the events after calls that read what they, or one of them, have made."""
    inside = {index for call in calls for index in _range(call)}
    first = min(inside, default=len(trace.events))
    known: set[int] = set()
    made: set[int] = set()
    copied_bytes: set[int] = set()
    found: list[int] = []
    for index, event in enumerate(trace.events):
        reads, writes = _reads(event), _writes(event)
        if index in inside:
            # A view is of the same memory as what it shows, which the call did not make.
            made |= writes - known
        elif index > first:
            # What is copied has another number on the other side: new there, and of equal size.
            if isinstance(event, Op):
                made |= {
                    spec.storage
                    for spec in event.inputs
                    if spec.storage not in known and spec.num_bytes in copied_bytes
                }
            if not made.isdisjoint(reads):
                found.append(index)
                made |= writes
                if isinstance(event, Copy):
                    copied_bytes.add(event.num_bytes)
        known |= reads | writes
    return found


def _range(call: ModelCall) -> range:
    return range(call.first_event, call.first_event + call.num_events)


def _reads(event: Event) -> set[int]:
    if isinstance(event, Op):
        return {spec.storage for spec in event.inputs if spec.storage >= 0}
    return {event.storage} - {-1} if isinstance(event, (Sync, Copy)) else set()


def _writes(event: Event) -> set[int]:
    if not isinstance(event, Op):
        return set()
    return {spec.storage for spec in event.outputs if spec.storage >= 0} - _reads(event)


def _events_of(
    trace: StepTrace, calls: Sequence[ModelCall], line: tuple[str, int] | None
) -> tuple[int, ...]:
    """Return the events of evaluations: the calls, what follows, and all below the same line."""
    found = {*_following(trace, calls), *(index for call in calls for index in _range(call))}
    return tuple(
        index
        for index, event in enumerate(trace.events)
        if index in found or (line and line in map(line_of, trace.stack_of(event)))
    )
