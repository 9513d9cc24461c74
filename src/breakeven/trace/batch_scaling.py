"""One step at every batch size, from recordings of it at two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from breakeven.errors import BreakevenError
from breakeven.trace.events import (
    Copy,
    Event,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    Sync,
    TensorSpec,
)
from breakeven.trace.step_trace import StepTrace

_Located = Op | Copy | Sync | GraphLaunch
"""What does not stand for time alone."""

_Sizes = tuple[int, ...]


class ScalingError(BreakevenError):
    """Two traces that should be one step at two batch sizes are different steps."""


class ScaledTrace:
    """The same step at two batch sizes, and interpolated at every other.

    Each tensor dimension, copy size and host duration is an affine function of the batch size.
    Durations are measured and noisy, so neither their slope nor their constant part may be
    negative. Memory is affine at each operator, so its peak may move: small batches have it in the
    update of the parameters, large ones at the start of the backward pass.

    Args:
        first: The step at one batch size.
        second: The same step at another.

    Raises:
        ScalingError: A batch size is unknown, both are equal, or the steps differ in their
            operators; the message names the first that differs and both lines.
    """

    def __init__(self, first: StepTrace, second: StepTrace) -> None:
        if first.batch_size is None or second.batch_size is None:
            raise ScalingError(
                "the batch size of the step is unknown",
                hint="name the option of the script that sets it, so that it can be varied",
            )
        if first.batch_size == second.batch_size:
            raise ScalingError(f"both steps have batch size {first.batch_size}")
        self.first = first
        self.second = second
        self._batch_sizes = (first.batch_size, second.batch_size)
        self._pairs = tuple(_pairs(first, second))

    def at(self, batch_size: int) -> StepTrace:
        """Return the step at ``batch_size``; a traced size returns its trace.

        Raises:
            ValueError: ``batch_size`` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if batch_size == self._batch_sizes[0]:
            return self.first
        if batch_size == self._batch_sizes[1]:
            return self.second
        line = _Line(*self._batch_sizes, batch_size)
        first = self.first
        return msgspec.structs.replace(
            first,
            events=tuple(
                one if is_same else line.event(one, other) for one, other, is_same in self._pairs
            ),
            batch_size=batch_size,
            peak_memory_bytes=self.peak_memory_bytes(batch_size),
            # Host work may be merged, so positions of events are no longer valid.
            facts=msgspec.structs.replace(first.facts, model_calls=()),
        )

    def peak_memory_bytes(self, batch_size: int) -> int:
        """Return the largest sum of live device tensors within the step at ``batch_size``."""
        first, second = self._live_bytes
        share = (batch_size - self._batch_sizes[0]) / (self._batch_sizes[1] - self._batch_sizes[0])
        # The peak is a maximum of affine functions, so neither operand is above it outside of the
        # recorded sizes. The second also has what no operator shows: a graph's memory, temporary
        # tensors of an optimizer.
        recorded_bytes = self.first.peak_memory_bytes + share * (
            self.second.peak_memory_bytes - self.first.peak_memory_bytes
        )
        return round(max((first + share * (second - first)).max(initial=0.0), recorded_bytes))

    @cached_property
    def _live_bytes(self) -> tuple[NDArray[np.float64], ...]:
        """Return the live device tensors at each operator, at both batch sizes."""
        return tuple(live_bytes(self.first.ops, trace.ops) for trace in (self.first, self.second))


def live_bytes(ops: Sequence[Op], sized: Sequence[Op]) -> NDArray[np.float64]:
    """Return the bytes of live device tensors at each operator.

    A tensor lives from the operator that makes it to the last that uses it; one that no operator
    makes lives throughout.

    Args:
        ops: The operators of a step, which say when tensors live.
        sized: The same operators at a batch size, which say how large tensors are.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for position, (op, at_size) in enumerate(zip(ops, sized, strict=True)):
        for tensors, others, start in (
            (op.inputs, at_size.inputs, -1),
            (op.outputs, at_size.outputs, position),
        ):
            for tensor, other in zip(tensors, others, strict=True):
                if tensor.device == "cpu" or tensor.layout == "expanded":
                    continue
                starts.setdefault(tensor.storage, start)
                ends[tensor.storage] = position
                sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), other.num_bytes)
    changes = np.zeros(len(ops) + 1)
    for storage, start in starts.items():
        changes[max(start, 0)] += sizes[storage]
        changes[ends[storage] + 1 if start >= 0 else -1] -= sizes[storage]
    return changes[:-1].cumsum()


class _Line:
    """Affine functions of the batch size, evaluated at one size."""

    def __init__(self, first: int, second: int, batch_size: int) -> None:
        self._step = batch_size - first
        self._width = second - first
        self._at = batch_size
        self._batches = (first, second)
        # A step has few shapes, each many times: evaluate each once.
        self._shapes: dict[tuple[_Sizes, _Sizes], _Sizes] = {}

    def size(self, one: int, other: int) -> int:
        """Return a size; one that is positive in both traces stays positive."""
        if one == other:
            return one
        value = one + round((other - one) * self._step / self._width)
        return max(value, min(1, one, other))

    def duration_ns(self, one: int, other: int) -> int:
        """Return a duration whose slope and constant part are not negative."""
        small, large = (one, other) if self._width > 0 else (other, one)
        if large <= small:
            return round((one + other) / 2)
        low, high = sorted(self._batches)
        slope = min((large - small) / (high - low), large / high)
        return round(large + slope * (self._at - high))

    def shape(self, one: _Sizes, other: _Sizes) -> _Sizes:
        """Return a shape."""
        key = (one, other)
        value = self._shapes.get(key)
        if value is None:
            value = tuple(self.size(a, b) for a, b in zip(one, other, strict=True))
            self._shapes[key] = value
        return value

    def tensor(self, one: TensorSpec, other: TensorSpec) -> TensorSpec:
        """Return a tensor; its storage is that of the first trace."""
        if one.shape == other.shape:
            return one
        return msgspec.structs.replace(one, shape=self.shape(one.shape, other.shape))

    def attribute(self, one: object, other: object) -> object:
        """Return a non-tensor argument: integers scale, also within lists; the rest is kept."""
        if isinstance(one, bool) or one == other:
            return one
        if isinstance(one, int) and isinstance(other, int):
            # Indices such as `end=-1` are negative, so no lower bound holds here.
            return one + round((other - one) * self._step / self._width)
        ones, others = _items(one), _items(other)
        if ones is not None and others is not None and len(ones) == len(others):
            return [self.attribute(a, b) for a, b in zip(ones, others, strict=True)]
        return one

    def event(self, one: Event, other: Event) -> Event:
        """Return an event that differs between the traces."""
        if isinstance(one, Op):
            assert isinstance(other, Op)
            attributes = one.attributes
            if attributes != other.attributes:
                attributes = {
                    name: self.attribute(value, other.attributes[name])
                    for name, value in attributes.items()
                }
            return msgspec.structs.replace(
                one,
                inputs=tuple(map(self.tensor, one.inputs, other.inputs)),
                outputs=tuple(map(self.tensor, one.outputs, other.outputs)),
                attributes=attributes,
                host_ns=self.duration_ns(one.host_ns, other.host_ns),
            )
        if isinstance(one, Copy | Sync):
            assert isinstance(other, Copy | Sync)
            return msgspec.structs.replace(one, num_bytes=self.size(one.num_bytes, other.num_bytes))
        if isinstance(one, GraphLaunch):
            return one
        assert isinstance(other, HostWork)
        return msgspec.structs.replace(
            one, duration_ns=self.duration_ns(one.duration_ns, other.duration_ns)
        )


def _items(value: object) -> list[object] | None:
    """Return the elements of a list or tuple; None for anything else."""
    return list(cast("list[object]", value)) if isinstance(value, list | tuple) else None


def _pairs(first: StepTrace, second: StepTrace) -> list[tuple[Event, Event, bool]]:
    """Return the events of both steps in pairs, and whether they are equal."""
    pairs: list[tuple[Event, Event, bool]] = []
    ones, others = _segments(first), _segments(second)
    for (work, one), (other_work, other) in zip(ones, others, strict=False):
        pairs.extend(_paired_work(work, other_work))
        if one is None and other is None:
            break
        if one is None or other is None or _identity(one) != _identity(other):
            raise ScalingError(
                f"the step does other things at batch size {second.batch_size} than at "
                f"{first.batch_size}: {_difference(one, other)}",
                hint="give batch sizes at which the script does the same work per step, and only "
                "more of it; a last, smaller batch of an epoch is a common reason",
            )
        pairs.append((one, other, _is_constant(one, other)))
    return pairs


def _segments(trace: StepTrace) -> list[tuple[list[HostWork], _Located | None]]:
    """Return each event with the host's own work before it; the end of the step comes last."""
    segments: list[tuple[list[HostWork], _Located | None]] = []
    work: list[HostWork] = []
    for event in trace.events:
        if isinstance(event, HostWork):
            work.append(event)
        else:
            segments.append((work, event))
            work = []
    segments.append((work, None))
    return segments


def _paired_work(ones: list[HostWork], others: list[HostWork]) -> list[tuple[Event, Event, bool]]:
    """Return the host's work between two events, merged by kind.

    Short work is recorded only above a threshold, so it may appear in one trace alone. Then it does
    not show a dependence on the batch size, and counts half at every size.
    """
    merged: dict[tuple[str, int, Phase], tuple[list[HostWork], list[HostWork]]] = {}
    for side, works in enumerate((ones, others)):
        for work in works:
            key = (work.kind, work.num_workers, work.phase)
            merged.setdefault(key, ([], []))[side].append(work)
    pairs: list[tuple[Event, Event, bool]] = []
    for one, other in merged.values():
        sample = (one or other)[0]
        durations = [sum(work.duration_ns for work in side) for side in (one, other)]
        if not (one and other):
            durations = [round(sum(durations) / 2)] * 2
        pair = [msgspec.structs.replace(sample, duration_ns=value) for value in durations]
        pairs.append((pair[0], pair[1], pair[0] == pair[1]))
    return pairs


def _identity(event: _Located) -> tuple[object, ...]:
    """Return the properties that two events must share to be the same at two batch sizes."""
    match event:
        case Op():
            kind = (event.name, event.device, event.is_replayed, event.phase, len(event.inputs))
            return (*kind, _kinds(event), tuple(event.attributes))
        case Copy():
            flags = (event.is_pinned, event.non_blocking, event.is_replayed, event.phase)
            return ("copy", event.source, event.destination, *flags)
        case GraphLaunch():
            return ("graph", event.phase)
        case _:
            return ("sync", event.kind, event.phase)


def _kinds(op: Op) -> tuple[tuple[int, str, str], ...]:
    return tuple((len(each.shape), each.dtype, each.device) for each in (*op.inputs, *op.outputs))


def _is_constant(one: _Located, other: _Located) -> bool:
    if isinstance(one, Op) and isinstance(other, Op):
        # A device's op does not use its time on the tracing machine, and each trace numbers its
        # own storages.
        shapes, other_shapes = (
            [tensor.shape for tensor in (*op.inputs, *op.outputs)] for op in (one, other)
        )
        is_timed_alike = not one.is_on_host or one.host_ns == other.host_ns
        return is_timed_alike and one.attributes == other.attributes and shapes == other_shapes
    if isinstance(one, Copy | Sync) and isinstance(other, Copy | Sync):
        return one.num_bytes == other.num_bytes
    return True  # launches of a graph


def _difference(one: _Located | None, other: _Located | None) -> str:
    if isinstance(one, Op) and isinstance(other, Op) and one.name == other.name:
        # For instance one result per sample, over which a loop runs.
        for what, many, few in (
            ("returns", other.outputs, one.outputs), ("is given", other.inputs, one.inputs),
        ):  # fmt: skip
            if len(many) != len(few):
                return f"{_describe(other)} {what} {len(many)} tensors instead of {len(few)}"
        if _kinds(one) != _kinds(other):
            return f"{_describe(other)} works on tensors of other types or numbers of dimensions"
    return f"{_describe(other)} instead of {_describe(one)}"


def _describe(event: _Located | None) -> str:
    if event is None:
        return "the end of the step"
    if isinstance(event, Op):
        what = event.name
    elif isinstance(event, Copy):
        what = f"a copy from {event.source} to {event.destination}"
    elif isinstance(event, GraphLaunch):
        what = "the launch of a CUDA graph"
    else:
        what = f"a sync ({event.kind})"
    location = event.location
    return f"{what} at {location.place}" if location else what
