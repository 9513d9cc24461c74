"""Convolutions: direct ones, with the batch innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.operators import FLOATS, Op, lowers, prefix_of
from faststep.codegen.program import C_TYPES, Const, UnsupportedError, View, contiguous, count
from faststep.codegen.reduce_ops import reduce_view

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


class _Convolution:
    """Sizes of a convolution over one or two dimensions, from the arguments of its operator.

    A transposed convolution is the gradient of the input of a convolution, and its own gradients
    are that convolution: the sizes here are those of the convolution that is not transposed.

    Args:
        shape: Of the operator's input.
        weight: Of the weight.
        target: Of the operator's result.
        settings: Stride, padding, dilation, whether it is transposed, output padding, groups.
    """

    def __init__(
        self,
        shape: Sequence[int],
        weight: Sequence[int],
        target: Sequence[int],
        settings: Sequence[Any],
    ) -> None:
        stride, padding, dilation, self.is_transposed, _, self.groups = settings
        if len(shape) not in (3, 4):
            raise UnsupportedError(f"{len(shape) - 2} dimensions are not covered")
        if 0 in (*shape, *weight, *target):
            raise UnsupportedError("it has no elements")
        if self.is_transposed:
            shape, target = target, shape
        self.batch = shape[0]
        self.rows, self.channels = weight[0] // self.groups, weight[1]
        # Source, target and weight sizes, stride, padding and dilation of each dimension.
        dims = list(zip(shape[2:], target[2:], weight[2:], stride, padding, dilation, strict=True))
        self._dims = dims if len(dims) == 2 else [(1, 1, 1, 1, 0, 1), *dims]

    def operations(self) -> int:
        """Return how often it, or either of its gradients, multiplies and adds."""
        places = count([target * taps for _, target, taps, *_ in self._dims])
        return self.batch * self.groups * self.rows * self.channels * places

    def places(self, side: int) -> int:
        """Return the lines of its source (0) or target (1); of one line, its places."""
        lines, places = (dim[side] for dim in self._dims)
        return places if lines == 1 else lines

    def num_tap_tiles(self) -> int:
        """Return how many tiles of the weight's gradient there are of each row, about."""
        return -(-self.channels * count([dim[2] for dim in self._dims]) // 4)

    def forward(self) -> str:
        """Return its dimensions as C."""
        return ", ".join(
            f"(along){{{source}, {target}, {taps}, {stride}, 1, {padding}, {dilation}}}"
            for source, target, taps, stride, padding, dilation in self._dims
        )

    def backward(self) -> str:
        """Return the dimensions of the gradient of its input as C."""
        return ", ".join(
            f"(along){{{target}, {source}, {taps}, 1, {stride}, {-padding}, {-dilation}}}"
            for source, target, taps, stride, padding, dilation in self._dims
        )

    def weight(self, view: View, *, is_turned: bool = False) -> str:
        """Return the strides of a weight as C; turned, with its channels as rows."""
        row, channel, *taps = view.strides
        taps = taps if len(taps) == 2 else [0, *taps]
        rows, channels = (channel, row) if is_turned else (row, channel)
        group = row * self.rows
        return f"(weight){{{group}, {rows}, {channels}, {taps[0]}, {taps[1]}}}"


def batch_innermost(lowering: Lowering, value: Any) -> View:
    """Return a tensor of samples, channels and places in memory with the samples innermost."""
    view = lowering.view(value)
    order = (*range(1, len(view.shape)), 0)
    dense = contiguous(view.shape, order)
    is_so = all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(view.shape, view.strides, dense, strict=True)
    )
    if is_so:
        return replace(view, strides=dense)
    return lowering.arranged(view, order)


def float_prefix(*dtypes: torch.dtype) -> str:
    """Return the prefix of the kernels of a type of floats, which all operands must have.

    Raises:
        UnsupportedError: They have another type, or several.
    """
    if len(set(dtypes)) != 1 or dtypes[0] not in FLOATS:
        raise UnsupportedError(f"not for {', '.join(str(one) for one in dict.fromkeys(dtypes))}")
    return prefix_of(dtypes[0])


def _correlate(
    lowering: Lowering,
    conv: _Convolution,
    inputs: list[View],
    total: View,
    *,
    is_gradient: bool,
) -> View:
    """Write a convolution, or the gradient of its input, of a batch, a weight and maybe a bias."""
    w, bias = inputs[1], "p2" if len(inputs) == 3 else "0"
    dims, rows, channels = conv.forward(), conv.rows, conv.channels
    if is_gradient:
        dims, rows, channels = conv.backward(), channels, rows
    body = (
        f"{prefix_of(total.dtype)}_correlate({dims}, {conv.groups}, {rows}, {channels}, "
        f"{conv.batch}, {conv.weight(w, is_turned=is_gradient)}, p1, {bias}, p0, "
        f"p{len(inputs)}, part, parts);"
    )
    lowering.call(
        body,
        inputs,
        [total],
        operations=conv.operations(),
        most_parts=conv.places(0 if is_gradient else 1),
    )
    return total


def _new_batch(lowering: Lowering, like: torch.Tensor) -> View:
    return lowering.new_view(tuple(like.shape), like.dtype, (*range(1, like.dim()), 0))


@lowers("convolution")
def _convolution(lowering: Lowering, op: Op, args: list[Any]) -> View:
    result, batch, weight = op.result, op.given(0), op.given(1)
    conv = _Convolution(batch.shape, weight.shape, result.shape, args[3:9])
    float_prefix(result.dtype, batch.dtype, weight.dtype)
    inputs = [batch_innermost(lowering, args[0]), lowering.view(args[1])]
    total = _new_batch(lowering, result)
    if args[2] is not None:
        inputs.append(_dense(lowering, args[2]))
        float_prefix(result.dtype, inputs[2].dtype)
    return _correlate(lowering, conv, inputs, total, is_gradient=conv.is_transposed)


def _dense(lowering: Lowering, value: Any) -> View:
    view = lowering.view(value)
    return view if view.strides[0] == 1 else lowering.arranged(view, (0,))


@lowers("convolution_backward")
def _convolution_backward(lowering: Lowering, op: Op, args: list[Any]) -> list[Any]:
    gradient, batch, weight = (op.given(number) for number in range(3))
    conv = _Convolution(batch.shape, weight.shape, gradient.shape, args[4:10])
    prefix = float_prefix(gradient.dtype, batch.dtype, weight.dtype)
    if isinstance(args[0], Const) and args[0].value == 0:
        return [
            None if one is None else Const(0.0, tuple(one.shape), one.dtype) for one in op.result
        ]
    dy = batch_innermost(lowering, args[0])
    results: list[Any] = [None, None, None]
    for_input, for_weight, for_bias = args[10]
    w = lowering.view(args[2])
    if for_input:
        results[0] = _correlate(
            lowering,
            conv,
            [dy, w],
            _new_batch(lowering, batch),
            is_gradient=not conv.is_transposed,
        )
    if for_weight:
        x = batch_innermost(lowering, args[1])
        total = lowering.new_view(tuple(weight.shape), weight.dtype, w.order())
        ctype = C_TYPES[weight.dtype]
        body = (
            f"static const {ctype} zeros[{conv.batch}];\n"
            f"{prefix}_weight_gradient({conv.forward()}, {conv.groups}, {conv.rows}, "
            f"{conv.channels}, {conv.batch}, {conv.weight(total)}, p0, p1, p2, zeros, part, parts);"
        )
        lowering.call(
            body,
            [x, dy] if conv.is_transposed else [dy, x],
            [total],
            operations=conv.operations(),
            most_parts=conv.num_tap_tiles(),
        )
        results[1] = total
    if for_bias:
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        results[2] = reduce_view(lowering, dy, dims, "sum", op.result[2])
    return results
