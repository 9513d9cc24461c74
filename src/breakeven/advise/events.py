"""Queries on the events of a step: by position, line, operator name and memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate, takewhile
from typing import Final, TypeVar

from msgspec.structs import replace

from breakeven.trace import Copy, Event, Location, Op, Phase, StepTrace, TensorSpec

CONVOLUTIONS: Final = frozenset(("convolution", "_convolution", "cudnn_convolution"))
CONVOLUTION_BACKWARD: Final = "convolution_backward"
BATCH_NORMS: Final = frozenset(
    ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
     "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
)  # fmt: skip

ZEROING: Final = frozenset({"zero_", "_foreach_zero_"})
_Frame = TypeVar("_Frame")
_UPDATES = ("aten._foreach_", "aten._fused_")


def op_at(trace: StepTrace, index: int) -> Op:
    """Return the operator at a position known to contain one."""
    event = trace.events[index]
    assert isinstance(event, Op)
    return event


def copy_at(trace: StepTrace, index: int) -> Copy:
    """Return the copy at a position known to contain one."""
    event = trace.events[index]
    assert isinstance(event, Copy)
    return event


def line_of(place: Event | Location | None) -> tuple[str, int] | None:
    """Return file and line of an event or a location, for comparison."""
    location = place if isinstance(place, Location | None) else place.location
    return (location.file, location.line) if location else None


def lines_where(trace: StepTrace, test: Callable[[Event], bool]) -> frozenset[tuple[str, int]]:
    """Return the known lines of the events that pass a test."""
    lines = (line_of(event) for event in trace.events if test(event))
    return frozenset(line for line in lines if line is not None)


def common_start(stacks: Iterable[tuple[_Frame, ...]]) -> tuple[_Frame, ...]:
    """Return the common prefix of some stacks."""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in levels)


def base_name(op: Op) -> str:
    """Return the name without namespace and overload: ``add_`` for ``aten.add_.Tensor``."""
    return op.name.split(".")[1] if "." in op.name else op.name


def bare_name(op: Op) -> str:
    """Return the name also without the underscore of the in-place form: ``add``."""
    name = base_name(op)
    return name.removesuffix("_") or name


def is_in_place(op: Op) -> bool:
    """Return whether the operator writes into its first argument: ``aten.add_.Tensor``."""
    return base_name(op).endswith("_")


def with_tensors(op: Op, change: Callable[[TensorSpec], TensorSpec]) -> Op:
    """Return the operator with each of its tensors changed by ``change``."""
    return replace(op, inputs=tuple(map(change, op.inputs)), outputs=tuple(map(change, op.outputs)))


def on_device(event: Event) -> Op:
    """Return the operator as the device would run it."""
    assert isinstance(event, Op)
    moved = with_tensors(event, lambda spec: replace(spec, device="cuda:0"))
    return replace(moved, device="cuda:0")


def read_by(ops: Iterable[Op]) -> frozenset[int]:
    """Return the known memory blocks that operators read."""
    return frozenset(tensor.storage for op in ops for tensor in op.inputs) - {-1}


def written_by(ops: Iterable[Op]) -> frozenset[int]:
    """Return the known memory blocks that operators write."""
    return frozenset(tensor.storage for op in ops for tensor in op.outputs) - {-1}


def is_view(op: Op) -> bool:
    """Return whether an operator's result shares the unchanged memory of its first input."""
    if not op.inputs or not op.outputs or op.inputs[0].storage < 0:
        return False
    is_same = all(tensor.storage == op.inputs[0].storage for tensor in op.outputs)
    return is_same and not is_in_place(op)


def parameters_of(trace: StepTrace) -> frozenset[int]:
    """Return the memory blocks that both the optimizer and the forward pass read.

    This excludes gradients and moments: the forward pass does not read them.
    """
    return read_by(_ops_of(trace, Phase.OPTIMIZER)) & read_by(_ops_of(trace, Phase.FORWARD))


def gradients_of(trace: StepTrace) -> frozenset[int]:
    """Return the memory blocks that the backward pass writes and the optimizer reads."""
    return written_by(_ops_of(trace, Phase.BACKWARD)) & read_by(_ops_of(trace, Phase.OPTIMIZER))


def _ops_of(trace: StepTrace, phase: Phase) -> list[Op]:
    return [op for op in trace.ops if op.phase is phase]


def newest_storages(events: tuple[Event, ...]) -> list[int]:
    """Return the highest memory number up to each event: newer memory has a higher number."""
    newest = (
        max(read_by([event]) | written_by([event]), default=-1)
        if isinstance(event, Op)
        else (event.storage if isinstance(event, Copy) else -1)
        for event in events
    )
    return list(accumulate(newest, max))


class MemoryWriters:
    """The operators that wrote each memory block, in step order, to find the origin of a value.

    Args:
        trace: The step.

    Attributes:
        updated: Memory that the optimizer uses: parameters, gradients and its state.
    """

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._writers: dict[int, list[int]] = {}
        self._origins: dict[int, tuple[frozenset[str], int]] = {}
        for index, event in enumerate(trace.events):
            for storage in written_by([event]) if isinstance(event, Op) else ():
                self._writers.setdefault(storage, []).append(index)
        self.updated = frozenset(
            tensor.storage
            for op in _ops_of(trace, Phase.OPTIMIZER)
            if not op.is_on_host and (op.name.startswith(_UPDATES) or is_in_place(op))
            for tensor in op.inputs
            if tensor.numel > 1
        ) - {-1}

    def writer(self, storage: int, before: int) -> int | None:
        """Return the last operator before a position that wrote or viewed the memory."""
        indices = self._writers.get(storage, ())
        number = bisect_left(indices, before)
        return indices[number - 1] if number else None

    def origin(self, storage: int, before: int) -> tuple[frozenset[str], int]:
        """Follow single-input operators back, such as ``p.grad.abs().mean()`` from its mean.

        Args:
            storage: Memory of the value.
            before: Position in the step.

        Returns:
            The names of the operators, and the memory that the earliest one reads.
        """
        names, passed = frozenset[str](), list[int]()
        while storage not in self.updated:
            index = self.writer(storage, before)
            if index is None:
                break
            if index in self._origins:
                names, storage = self._origins[index]
                break
            passed.append(index)
            sources = {tensor.storage for tensor in op_at(self._trace, index).inputs}
            if len(sources) != 1:
                break
            storage, before = sources.pop(), index
        # Cache the origins, so that shared chains are followed only once.
        for index in reversed(passed):
            name = bare_name(op_at(self._trace, index))
            names = names if name in names else names | {name}
            self._origins[index] = names, storage
        return names, storage
