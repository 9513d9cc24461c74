"""One step at other batch sizes, from a single recording: its sizes show which dimensions grow.

A dimension grows with the batch if it is as large as the batch or, if batch and time are flattened
into one, a multiple of it. This fails if another dimension is as large. So collect first the
dimensions of parameters and of all other tensors that exist before the step and stay; afterwards
check the operators whose dimensions must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from msgspec.structs import replace

from breakeven.trace.batch_scaling import ScaledTrace, ScalingError, live_bytes
from breakeven.trace.events import Copy, Event, HostWork, Op, Phase, Sync, TensorSpec
from breakeven.trace.step_trace import StepTrace, num_micro_batches

# Operators that reshape the same elements.
_RESHAPES = ("aten.view.", "aten._unsafe_view.", "aten.t.", "aten.transpose.", "aten.permute.")
# Position of the first of two matrices whose inner dimensions are equal.
_PRODUCTS = {"aten.mm.": 0, "aten.bmm.": 0, "aten.addmm.": 1, "aten.baddbmm.": 1}
_SHAPE_ARGUMENTS = ("size", "shape")


def scaled_from_one(trace: StepTrace) -> ScaledTrace:
    """Return the step at every batch size, from one recording of it.

    The host's work besides operators (a script that generates its batches) takes the same time per
    sample.

    Raises:
        ScalingError: The dimensions of the batch are ambiguous; the message says why.
    """
    if trace.batch_size is None:
        raise ScalingError("no single call of a model tells how large the batch is")
    # In a step that accumulates gradients, take the batch of each call, which the tensors have.
    size = trace.batch_size // num_micro_batches(trace.events, trace.facts.model_calls)
    if size == 1:
        raise ScalingError("a batch of one sample looks like no batch at all")
    growth = _Growth(trace, size)
    if size in growth.fixed:
        raise ScalingError(
            f"the batch of {size} samples is as large as a dimension of the model or its data, so "
            "breakeven cannot tell which dimension is the batch"
        )
    second = replace(
        trace,
        events=tuple(growth.event(event) for event in trace.events),
        batch_size=2 * trace.batch_size,
    )
    more_bytes = live_bytes(trace.ops, second.ops).max() - live_bytes(trace.ops, trace.ops).max()
    second = replace(second, peak_memory_bytes=trace.peak_memory_bytes + round(more_bytes))
    for one, other in zip(trace.ops, second.ops, strict=True):
        if not _agrees(one, other):
            raise ScalingError(f"which dimensions of {one.name} grow with the batch is unclear")
    return ScaledTrace(trace, second)


class _Growth:
    """Doubles the batch of one step's events.

    Args:
        trace: The step.
        size: Its batch size.
    """

    def __init__(self, trace: StepTrace, size: int) -> None:
        self._size = size
        copied = {copy.storage for copy in trace.copies if copy.is_to_device}
        made = set(copied)
        self._found: set[int] = set()
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._specs: dict[int, TensorSpec] = {}
        self._views: dict[tuple[int, int], TensorSpec] = {}
        kept: list[TensorSpec] = []
        for op in trace.ops:
            found = [tensor for tensor in op.inputs if tensor.storage not in made]
            self._found.update(tensor.storage for tensor in found)
            made.update(
                tensor.storage for tensor in op.outputs if tensor.storage not in self._found
            )
            kept += op.inputs if op.phase is Phase.OPTIMIZER else _first_of_each(found)
            for tensor in (*op.inputs, *op.outputs):
                self._specs.setdefault(tensor.storage, tensor)
                self._views[tensor.storage, tensor.num_bytes] = tensor
        # Only a batch that exists before the step begins with its samples.
        self.fixed = {
            length
            for tensor in kept
            for length in (tensor.shape[1:] if self._is_batch(tensor) else tensor.shape)
        }

    def _is_batch(self, tensor: TensorSpec) -> bool:
        """Return whether a tensor that exists before the step may be its batch.

        A vector of floats may also be a bias; one of integers is labels, one per sample or
        per time step of it.
        """
        if not tensor.shape:
            return False
        if len(tensor.shape) == 1:
            return "int" in tensor.dtype and tensor.shape[0] % self._size == 0
        return tensor.shape[0] == self._size

    def event(self, event: Event) -> Event:
        """Return an event at twice the batch size."""
        if isinstance(event, Op):
            inputs = tuple(map(self._tensor, event.inputs))
            outputs = self._outputs(event, inputs)
            before = sum(tensor.numel for tensor in (*event.inputs, *event.outputs))
            after = sum(tensor.numel for tensor in (*inputs, *outputs))
            return replace(
                event,
                inputs=inputs,
                outputs=outputs,
                attributes=_attributes(event, outputs),
                host_ns=round(event.host_ns * after / before) if before else event.host_ns,
            )
        if isinstance(event, Copy | Sync):
            # A batch may be a small part of a memory block with all data.
            part = self._views.get((event.storage, event.num_bytes))
            spec = part or self._specs.get(event.storage)
            if spec is None or not spec.numel:
                return event
            num_bytes = event.num_bytes * self._tensor(spec).numel // spec.numel
            return replace(event, num_bytes=num_bytes)
        if isinstance(event, HostWork) and event.kind in ("data", "script"):
            return replace(event, duration_ns=2 * event.duration_ns)
        return event

    def _outputs(self, op: Op, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return an operator's results, and record the shapes that a shape alone does not give."""
        outputs: list[TensorSpec] = []
        for output in op.outputs:
            new = self._tensor(output)
            alike = (k for k, tensor in enumerate(op.inputs) if tensor.shape == output.shape)
            like = next(alike, None)
            if like is not None:
                new = replace(output, shape=inputs[like].shape)
            elif op.name.startswith(_RESHAPES):
                new = self._reshaped(output, _growth(op.inputs[0], inputs[0]))
            self._known[output.storage, output.shape] = new.shape
            outputs.append(new)
        return tuple(outputs)

    def _reshaped(self, output: TensorSpec, growth: float) -> TensorSpec:
        """Return a view whose elements became ``growth`` times as many, in any dimension."""
        new = self._by_shape(output)
        if _growth(output, new) == growth:
            return new
        places = [
            position
            for position, length in enumerate(output.shape)
            if length and length % self._size == 0 and length not in self.fixed
        ]
        if output.shape[:1] == (self._size,):
            places = [0]  # there may be as many heads as samples; the batch comes first
        if growth != 2 or len(places) != 1:
            return new  # `_agrees` will reject it
        shape = list(output.shape)
        shape[places[0]] *= 2
        return replace(output, shape=tuple(shape))

    def _tensor(self, tensor: TensorSpec) -> TensorSpec:
        known = self._known.get((tensor.storage, tensor.shape))
        if known is not None:
            return replace(tensor, shape=known)
        return self._by_shape(tensor)

    def _by_shape(self, tensor: TensorSpec) -> TensorSpec:
        shape = tuple(
            2 * length if self._grows(tensor, position) else length
            for position, length in enumerate(tensor.shape)
        )
        return tensor if shape == tensor.shape else replace(tensor, shape=shape)

    def _grows(self, tensor: TensorSpec, position: int) -> bool:
        length = tensor.shape[position]
        if length == self._size:
            return True
        is_flattened = position == 0 or len(tensor.shape) == 2
        return (
            is_flattened
            and length > 0
            and length % self._size == 0
            and length not in self.fixed
            and (tensor.storage not in self._found or self._is_batch(tensor))
        )


def _first_of_each(tensors: Iterable[TensorSpec]) -> Iterable[TensorSpec]:
    return {tensor.storage: tensor for tensor in reversed(list(tensors))}.values()


def _attributes(op: Op, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the arguments of an operator; a shape argument follows the shape of its result."""
    if not op.outputs:
        return op.attributes
    old, new = list(op.outputs[0].shape), list(outputs[0].shape)
    return {
        name: new if name in _SHAPE_ARGUMENTS and value == old else value
        for name, value in op.attributes.items()
    }


def _agrees(one: Op, other: Op) -> bool:
    """Return whether dimensions that were equal in one step are equal in the other."""
    if one.name.startswith(_RESHAPES) and one.inputs and one.outputs:
        ratio = _growth(one.inputs[0], other.inputs[0])
        return ratio == _growth(one.outputs[0], other.outputs[0])
    for name, first in _PRODUCTS.items():
        if one.name.startswith(name) and len(other.inputs) > first + 1:
            left, right = other.inputs[first : first + 2]
            return left.shape[-1] == right.shape[-2]
    if one.name.startswith("aten.convolution."):
        return other.inputs[0].shape[0] == other.outputs[0].shape[0]
    return True


def _growth(one: TensorSpec, other: TensorSpec) -> float:
    return prod(other.shape) / prod(one.shape) if one.numel else 1.0
