"""Which operators of a step write and read which memory."""

from __future__ import annotations

from itertools import accumulate

from breakeven.doctor.operators import is_in_place
from breakeven.trace import Copy, Event, Op, Phase, StepTrace

_UPDATES = ("aten._foreach_", "aten._fused_")


class Origins:
    """Which operators wrote which memory, in the order of the step.

    Args:
        trace: The step.
    """

    def __init__(self, trace: StepTrace) -> None:
        self._events = trace.events
        self._writers: dict[int, list[int]] = {}
        self.updated = frozenset(_updated(trace))
        for index, event in enumerate(trace.events):
            if isinstance(event, Op):
                for storage in {tensor.storage for tensor in event.outputs} - {-1}:
                    self._writers.setdefault(storage, []).append(index)

    def writer(self, storage: int, before: int) -> int | None:
        """Return the last operator before a position that wrote or viewed the memory."""
        found = [index for index in self._writers.get(storage, ()) if index < before]
        return found[-1] if found else None

    def chain(self, storage: int, before: int) -> tuple[tuple[int, ...], int]:
        """Follow operators of one tensor back, such as ``p.grad.abs().mean()`` from its mean.

        Args:
            storage: Memory whose content is asked for; -1 where the trace does not know it, and
                the operator just before is taken.
            before: Position in the step.

        Returns:
            The operators, the last first, and the memory that the first of them reads.
        """
        found: list[int] = []
        position = before
        if storage == -1:
            last = self._events[before - 1] if before else None
            if not isinstance(last, Op) or not last.outputs:
                return (), -1
            storage = last.outputs[0].storage
        while storage not in self.updated:
            index = self.writer(storage, position)
            if index is None:
                break
            op = self._op(index)
            found.append(index)
            sources = {tensor.storage for tensor in op.inputs}
            if len(sources) != 1:
                break
            storage, position = sources.pop(), index
        return tuple(found), storage

    def _op(self, index: int) -> Op:
        op = self._events[index]
        assert isinstance(op, Op)
        return op


def newest_storages(events: tuple[Event, ...]) -> list[int]:
    """Return the highest number of memory up to each event: what is newer has a higher one."""
    return list(accumulate(map(_newest, events), max))


def _newest(event: Event) -> int:
    if isinstance(event, Op):
        return max((tensor.storage for tensor in (*event.inputs, *event.outputs)), default=-1)
    return event.storage if isinstance(event, Copy) else -1


def _updated(trace: StepTrace) -> set[int]:
    """Return the memory that the optimizer works on: parameters, gradients and its state."""
    found: set[int] = set()
    for op in trace.ops:
        if op.phase is not Phase.OPTIMIZER or op.is_on_host:
            continue
        if op.name.startswith(_UPDATES) or is_in_place(op):
            found.update(tensor.storage for tensor in op.inputs if tensor.numel > 1)
    return found - {-1}


def parameters_of(trace: StepTrace) -> frozenset[int]:
    """Return the memory blocks that the optimizer works on, of those that the forward pass reads.

    Gradients and moments are not among them: the forward pass does not read those.
    """
    updated: set[int] = set()
    read: set[int] = set()
    for op in trace.ops:
        if op.phase is Phase.OPTIMIZER:
            updated.update(tensor.storage for tensor in op.inputs)
        elif op.phase is Phase.FORWARD:
            read.update(tensor.storage for tensor in op.inputs)
    return frozenset(updated & read) - {-1}


def gradients_of(trace: StepTrace) -> frozenset[int]:
    """Return the memory blocks that the backward pass writes and the optimizer reads."""
    written: set[int] = set()
    read: set[int] = set()
    for op in trace.ops:
        if op.phase is Phase.BACKWARD:
            written.update(tensor.storage for tensor in op.outputs)
        elif op.phase is Phase.OPTIMIZER:
            read.update(tensor.storage for tensor in op.inputs)
    return frozenset(written & read) - {-1}
