"""Events as they would be once tensors were moved, or copied in another way."""

from __future__ import annotations

import msgspec

from breakeven.doctor.operators import with_tensors
from breakeven.trace import Copy, Event, Op, TensorSpec

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
