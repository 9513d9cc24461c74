"""Pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import RuleTable, base_name, streaming_kernel
from breakeven.trace import Op, TensorSpec

RULES = RuleTable()
_MAXIMUM = (
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d",
)  # fmt: skip

_AVERAGE = (
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
)  # fmt: skip


def _num_dimensions(op: Op) -> int:
    """Return over how many trailing dimensions ``avg_pool2d`` and its like pool."""
    name = base_name(op.name)
    return next(count for count in (1, 2, 3) if f"{count}d" in name)


def _window(op: Op, large: TensorSpec, small: TensorSpec) -> int:
    """Return how many elements one window covers, from its size or from that of the tensors."""
    dimensions = _num_dimensions(op)
    given: Sequence[int] | int | None = op.attributes.get("kernel_size")
    if isinstance(given, int):
        return given**dimensions
    if given:
        # A single number stands for all dimensions.
        return math.prod(given) if len(given) == dimensions else given[0] ** dimensions
    return math.prod(
        math.ceil(whole / max(1, part))
        for whole, part in zip(large.shape[-dimensions:], small.shape[-dimensions:], strict=True)
    )


@RULES.add((*_AVERAGE, *_MAXIMUM, "max_unpool2d", "max_unpool3d"))
def _lower_pool(op: Op) -> Kernel:
    source, result = op.inputs[0], op.outputs[0]
    flop = result.numel * _window(op, source, result)
    return streaming_kernel(op, family=Family.POOLING, flop=flop)


@RULES.add(f"{name}_backward" for name in _AVERAGE)
def _lower_average_backward(op: Op) -> Kernel:
    """Lower ``avg_pool2d_backward(grad_output, input)``; of the input only the shape is used."""
    grad, result = op.inputs[0], op.outputs[0]
    return streaming_kernel(
        op,
        family=Family.POOLING,
        flop=grad.numel * _window(op, result, grad),
        read_bytes=float(grad.num_bytes),
        variant="backward",
    )


@RULES.add(f"{name}_backward" for name in _MAXIMUM)
def _lower_max_backward(op: Op) -> Kernel:
    """Lower ``max_pool2d_with_indices_backward(grad_output, input, indices)``.

    The gradient goes to one element of each window; the input is not read.
    """
    grad, indices = op.inputs[0], op.inputs[-1]
    return streaming_kernel(
        op,
        family=Family.POOLING,
        flop=grad.numel,
        read_bytes=float(grad.num_bytes + indices.num_bytes),
        variant="backward",
    )
