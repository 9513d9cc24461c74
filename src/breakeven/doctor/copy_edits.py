"""Events as they would be once tensors were moved, or copied in another way."""

from __future__ import annotations

import msgspec

from breakeven.trace import Copy, Event, Op, TensorSpec

_DEVICE = "cuda:0"


def queued(copy: Copy) -> Copy:
    """Return the copy from pinned memory, which nothing waits for."""
    return msgspec.structs.replace(copy, is_pinned=True, non_blocking=True)


def on_device(event: Event) -> Op:
    """Return the operator as the device would run it."""
    assert isinstance(event, Op)
    return msgspec.structs.replace(
        event, inputs=_moved(event.inputs), outputs=_moved(event.outputs), device=_DEVICE
    )


def whole(op: Op, num_elements: int) -> Op:
    """Return the operator on the device for a whole batch at once.

    Args:
        op: An operator of the host that may work on one sample.
        num_elements: Elements of the batch.
    """
    moved = on_device(op)

    def sized(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        largest = max((tensor.numel for tensor in tensors), default=0)
        return tuple(
            msgspec.structs.replace(tensor, shape=(num_elements,), layout="contiguous")
            if tensor.numel == largest
            else tensor
            for tensor in tensors
        )

    return msgspec.structs.replace(moved, inputs=sized(moved.inputs), outputs=sized(moved.outputs))


def _moved(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(msgspec.structs.replace(tensor, device=_DEVICE) for tensor in tensors)
