"""Copies to the device by what they are of, and tensors moved or copied in another way."""

from __future__ import annotations

import msgspec

from breakeven.doctor.copy_owner import Made, Upload, made_on_host, uploads
from breakeven.doctor.events import Origins, copy_at, with_tensors
from breakeven.doctor.rule import Case, num_copies
from breakeven.doctor.sync_flow import round_trips
from breakeven.trace import Copy, Event, Op, StepTrace, TensorSpec
from breakeven.units import format_bytes

_DEVICE = "cuda:0"


def queued(copy: Copy) -> Copy:
    """Return the copy from pinned memory, which nothing waits for."""
    return msgspec.structs.replace(copy, is_pinned=True, non_blocking=True)


def on_device(event: Event) -> Op:
    """Return the operator as the device would run it."""
    assert isinstance(event, Op)
    moved = with_tensors(event, lambda spec: msgspec.structs.replace(spec, device=_DEVICE))
    return msgspec.structs.replace(moved, device=_DEVICE)


def whole(op: Op, num_elements: int) -> Op:
    """Return the operator on the device for a whole batch at once.

    Args:
        op: An operator of the host that may work on one sample.
        num_elements: Elements of the batch.
    """

    def sized(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        largest = max((tensor.numel for tensor in tensors), default=0)
        return tuple(
            msgspec.structs.replace(tensor, shape=(num_elements,), layout="contiguous")
            if tensor.numel == largest
            else tensor
            for tensor in tensors
        )

    moved = on_device(op)
    return msgspec.structs.replace(moved, inputs=sized(moved.inputs), outputs=sized(moved.outputs))


def uploaded(case: Case, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    trips = round_trips(case, Origins(case.trace))
    back = {copy for copies in trips.values() for copy in copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the operators of the host that made what is copied, out of nothing else."""
    made = {storage for storage, origin in made_on_host(trace).items() if origin is not Made.DATA}
    wanted = made & {copy_at(trace, index).storage for index in copies}
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        op = trace.events[index]
        if not isinstance(op, Op) or not op.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in op.outputs):
            makers.append(index)
            wanted |= made & {tensor.storage for tensor in op.inputs}
    return tuple(reversed(makers))


def seen_copies(case: Case, events: tuple[int, ...]) -> str:
    """Return in words how many copies there are, and of how much."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = num_copies(len(copies))
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"
