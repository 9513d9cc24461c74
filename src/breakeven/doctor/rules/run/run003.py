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
    trained = [call for call in case.facts.model_calls if call.is_used_in_backward]
    if not trained:
        return ()
    found: dict[tuple[str, int] | None, list[ModelCall]] = {}
    places: dict[tuple[str, int] | None, Location | None] = {}
    for call in case.facts.model_calls:
        if not call.is_used_in_backward and _evaluates(case, call):
            place = _line_in_loop(case.trace, call, trained[0])
            key = (place.file, place.line) if place else None
            found.setdefault(key, []).append(call)
            places[key] = place
    occurrences: list[Occurrence] = []
    for key, calls in found.items():
        trains_too = any(_key(one) == key for one in _stack(case.trace, trained[0]))
        # Below a line that starts a trainer's loop lies the training as well.
        below = None if trains_too else places[key]
        events = _events_of(case.trace, calls, below)
        if len(events) < _MIN_SHARE_FRACTION * len(case.trace.events):
            continue
        occurrences.append(_occurrence(case, calls, events, places[key]))
    return tuple(occurrences)


def _occurrence(
    case: Case, calls: list[ModelCall], events: tuple[int, ...], place: Location | None
) -> Occurrence:
    records = " and recorded for a backward pass" if any(call.has_grad for call in calls) else ""
    often = "" if len(calls) == 1 else f" {len(calls)} times"
    return Occurrence(
        title=f"{calls[0].model} is evaluated{often} in every training step{records}",
        fix="evaluate once per epoch or every n-th step, under torch.no_grad()",
        evidence=f"{len(events)} of {len(case.trace.events)} events of the step are forward passes "
        "that no gradient reaches, and what follows from them",
        location=_setting(case, calls[0]) or place,
        events=events,
        edit=without(events),
    )


def _setting(case: Case, call: ModelCall) -> Location | None:
    """Return where a trainer that calls the model is told how often to evaluate."""
    settings = (
        trainer_setting(case, location, *_SETTINGS) for location in _stack(case.trace, call)
    )
    return next((setting for setting in settings if setting is not None), None)


def _evaluates(case: Case, call: ModelCall) -> bool:
    words = _words(case, call)
    is_named = any(_EVALUATES.search(text) for text in words)
    is_acting = any(_ACTS.search(text) for text in words)
    is_meant = is_named or (not call.is_training and not is_acting)
    return is_meant and not _trains(case.trace, call)


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


def _line_in_loop(trace: StepTrace, call: ModelCall, trained: ModelCall) -> Location | None:
    """Return the line at which the way to the evaluation parts from that to the training."""
    reference = _stack(trace, trained)
    for depth, location in enumerate(_stack(trace, call)):
        if depth >= len(reference) or _key(location) != _key(reference[depth]):
            return location
    return call.location


def _key(location: Location) -> tuple[str, int]:
    return location.file, location.line


def _trains(trace: StepTrace, call: ModelCall) -> bool:
    """Return whether the backward pass or the optimizer reads anything that follows from a call."""
    following = _following(trace, call)
    return any(
        isinstance(event := trace.events[index], Op)
        and event.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        for index in following
    )


def _following(trace: StepTrace, call: ModelCall) -> list[int]:
    """Return the events after a call that read what it, or one of them, has made."""
    before = trace.events[: call.first_event]
    end = call.first_event + call.num_events
    known = {number for event in before for number in (*_reads(event), *_writes(event))}
    made: set[int] = set()
    for event in trace.events[call.first_event : end]:
        # A view is of the same memory as what it shows, which the call did not make.
        made.update(number for number in _writes(event) if number not in known)
        known.update(number for number in _reads(event) if number not in made)
    known |= made
    copied_bytes: set[int] = set()
    found: list[int] = []
    for index in range(end, len(trace.events)):
        event = trace.events[index]
        # What is copied has another number on the other side: new there, and of equal size.
        made.update(_arrived(event, known, copied_bytes))
        if any(number in made for number in _reads(event)):
            found.append(index)
            made.update(_writes(event))
            if isinstance(event, Copy):
                copied_bytes.add(event.num_bytes)
        known.update((*_reads(event), *_writes(event)))
    return found


def _arrived(event: Event, known: set[int], copied_bytes: set[int]) -> tuple[int, ...]:
    if not isinstance(event, Op):
        return ()
    return tuple(
        spec.storage
        for spec in event.inputs
        if spec.storage not in known and spec.num_bytes in copied_bytes
    )


def _reads(event: Event) -> tuple[int, ...]:
    if isinstance(event, Op):
        return tuple(spec.storage for spec in event.inputs if spec.storage >= 0)
    if isinstance(event, (Sync, Copy)):
        return (event.storage,) if event.storage >= 0 else ()
    return ()


def _writes(event: Event) -> tuple[int, ...]:
    if isinstance(event, Op):
        read = set(_reads(event))
        return tuple(
            spec.storage for spec in event.outputs if spec.storage >= 0 and spec.storage not in read
        )
    return ()


def _events_of(trace: StepTrace, calls: list[ModelCall], place: Location | None) -> tuple[int, ...]:
    """Return the events of evaluations: the calls, what follows, and all below the same line."""
    found: set[int] = set()
    for call in calls:
        found.update(range(call.first_event, call.first_event + call.num_events))
        found.update(_following(trace, call))
    if place is not None:
        found.update(
            index
            for index, event in enumerate(trace.events)
            if any(_key(location) == _key(place) for location in trace.stack_of(event))
        )
    return tuple(sorted(index for index in found if 0 <= index < len(trace.events)))
