"""One step at every value of a knob, from the same step traced at three."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from breakeven.trace import (
    Copy,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    ScaledTrace,
    ScalingError,
    StepTrace,
    Sync,
)

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
# Where in a tensor an operator reads, not how much: a step in the middle of an epoch has another
# place than one at its start, but the same work.
_POSITIONS = frozenset({"start", "end", "index", "storage_offset", "seed", "offset"})


def scale_knob(traced: Mapping[int, StepTrace], values: Sequence[int]) -> Scaling | None:
    """Return the step at every value of a knob, or None where that is not exact.

    Sizes are taken to be affine functions of the knob: the outer two traces determine them, the
    inner one has to agree, and every value has to give whole sizes.

    Args:
        traced: The step at three values of the knob.
        values: All values that are wanted.
    """
    low, middle, high = sorted(traced)
    traced = _with_common_work(traced)
    # `ScaledTrace` takes the batch size for the knob, and wants it positive.
    shift = 1 - min(low, *values)
    knobs = {value: replace(trace, batch_size=value + shift) for value, trace in traced.items()}
    try:
        scaled = ScaledTrace(knobs[low], knobs[high])
    except ScalingError:
        return None
    scaling = Scaling(scaled, traced, shift)
    inner = scaled.at(middle + shift)
    if _shapes(inner) != _shapes(knobs[middle]) or not scaling.is_consistent():
        return None
    ones, others = _sizes(knobs[low]), _sizes(knobs[high])
    stride = math.gcd(*(value - low for value in values))
    is_whole = len(ones) == len(others) and all(
        (other - one) * stride % (high - low) == 0 for one, other in zip(ones, others, strict=True)
    )
    return scaling if is_whole else None


def is_same_step(one: StepTrace, other: StepTrace) -> bool:
    """Return whether two traces are of the same operators on the same shapes."""
    return _shapes(one) == _shapes(other) and one.num_parameters == other.num_parameters


class Scaling:
    """The step at every value of a knob; made by `scale_knob`.

    Args:
        scaled: The step along the knob.
        traced: What was traced, by value.
        shift: From a value to what ``scaled`` takes for it.
    """

    def __init__(self, scaled: ScaledTrace, traced: Mapping[int, StepTrace], shift: int) -> None:
        self._scaled = scaled
        self._traced = traced
        self._shift = shift
        self._values = sorted(traced)
        self._low, self._high = self._values[0], self._values[-1]

    def is_consistent(self) -> bool:
        """Return whether batch size and number of parameters are known at every value."""
        if any(self._batch_size(value) != step.batch_size for value, step in self._traced.items()):
            return False
        # What else looks like a parameter, such as a batch, must not grow with a model.
        others = {step.num_parameters - _num_owned(step) for step in self._traced.values()}
        return self._is_of_one_model or len(others) == 1

    @property
    def _is_of_one_model(self) -> bool:
        return len({step.num_parameters for step in self._traced.values()}) == 1

    def at(self, value: int) -> StepTrace:
        """Return the step at a value."""
        if value in self._traced:
            return self._traced[value]
        trace = self._scaled.at(value + self._shift)
        first = self._traced[self._low]
        num_parameters = first.num_parameters
        if not self._is_of_one_model:
            num_parameters += _num_owned(trace) - _num_owned(first)
        return replace(
            trace,
            batch_size=self._batch_size(value),
            num_parameters=num_parameters,
            peak_memory_bytes=self._peak_memory_bytes(value),
        )

    def _batch_size(self, value: int) -> int | None:
        one, other = (self._traced[at].batch_size for at in (self._low, self._high))
        if one is None or other is None:
            return None
        return one + round((other - one) * (value - self._low) / (self._high - self._low))

    def _peak_memory_bytes(self, value: int) -> int:
        """Return the parabola through the traced peaks: a width enters a weight twice."""
        total = 0.0
        for at in self._values:
            weight = 1.0
            for other in self._values:
                if other != at:
                    weight *= (value - other) / (at - other)
            total += weight * self._traced[at].peak_memory_bytes
        below = [at for at in self._values if at <= value]
        # Beyond the traced values a parabola may bend down, but no larger step needs less.
        least = self._traced[below[-1]].peak_memory_bytes if below else 0
        return max(round(total), least)


def _with_common_work(traced: Mapping[int, StepTrace]) -> dict[int, StepTrace]:
    """Return the traces with only that work of the host which all of them have.

    What the script does itself is there each time, at the same place of the step; what is not was
    a pause of a busy machine.
    """
    places = [{place for place, _ in _placed_work(trace)} for trace in traced.values()]
    common = set[tuple[int, str]].intersection(*places)
    found: dict[int, StepTrace] = {}
    for value, trace in traced.items():
        dropped = {id(work) for place, work in _placed_work(trace) if place not in common}
        events = tuple(event for event in trace.events if id(event) not in dropped)
        found[value] = replace(trace, events=events)
    return found


def _placed_work(trace: StepTrace) -> list[tuple[tuple[int, str], HostWork]]:
    """Return the host's work with its kind and the number of operators and copies before it."""
    found: list[tuple[tuple[int, str], HostWork]] = []
    position = 0
    for event in trace.events:
        if isinstance(event, HostWork):
            found.append(((position, event.kind), event))
        else:
            position += 1
    return found


def _num_owned(trace: StepTrace) -> int:
    """Return the elements of what a forward pass reads and nothing in the step has made."""
    made = {copy.storage for copy in trace.copies if copy.storage >= 0}
    owned: dict[int, int] = {}
    for op in trace.ops:
        if op.phase is not Phase.FORWARD or op.is_on_host:
            continue
        for tensor in op.inputs:
            is_owned = tensor.storage not in made and tensor.dtype in _FLOATS
            if is_owned and tensor.shape:
                owned[tensor.storage] = max(owned.get(tensor.storage, 0), tensor.numel)
        made.update(tensor.storage for tensor in op.outputs if tensor.storage not in owned)
    return sum(owned.values())


def _shapes(trace: StepTrace) -> list[object]:
    """Return what decides the work of a step, without durations and places."""
    return [_shape(event) for event in trace.events if not isinstance(event, HostWork)]


def _shape(event: Op | Copy | Sync | GraphLaunch) -> object:
    match event:
        case Op():
            tensors = tuple(
                (tensor.shape, tensor.dtype, tensor.device)
                for tensor in (*event.inputs, *event.outputs)
            )
            whole = tuple(
                (name, _whole_part(value))
                for name, value in event.attributes.items()
                if name not in _POSITIONS
            )
            return (event.name, event.device, event.phase, event.is_replayed, tensors, whole)
        case Copy():
            return ("copy", event.source, event.destination, event.is_blocking, event.num_bytes)
        case Sync():
            return ("sync", event.kind, event.num_bytes)
        case GraphLaunch():
            return ("graph",)


def _whole_part(value: object) -> object:
    """Return an attribute without its floats: a learning rate changes no work."""
    if isinstance(value, float):
        return None
    if isinstance(value, list | tuple):
        return tuple(_whole_part(item) for item in cast("Sequence[object]", value))
    return value


def _sizes(trace: StepTrace) -> list[int]:
    """Return every size of a step in order; steps that differ in sizes alone have as many."""
    sizes: list[int] = []
    for event in trace.events:
        if isinstance(event, Op):
            for tensor in (*event.inputs, *event.outputs):
                sizes.extend(tensor.shape)
            for name, value in event.attributes.items():
                if name not in _POSITIONS:
                    sizes.extend(_whole_numbers(value))
        elif isinstance(event, Copy | Sync):
            sizes.append(event.num_bytes)
    return sizes


def _whole_numbers(value: object) -> list[int]:
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [number for item in items for number in _whole_numbers(item)]
    return [value] if isinstance(value, int) else []
