"""Lowering of convolutions and pooling over one or two dimensions, with the batch innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import FLOATS, Op, lowers, prefix_of
from faststep.codegen.program import C_TYPES, Const, UnsupportedError, View, contiguous, count
from faststep.codegen.reduce_ops import reduce_view


class _Convolution:
    """Sizes of a convolution over one or two dimensions, from the arguments of its operator.

    A transposed convolution computes the input gradient of a plain convolution; its own input
    gradient is that plain convolution. All sizes here are those of the plain convolution.

    Args:
        shape: Shape of the operator's input.
        weight: Shape of the weight.
        target: Shape of the operator's result.
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
        """Return the number of multiply-adds of the convolution, or of either gradient."""
        places = count([target * taps for _, target, taps, *_ in self._dims])
        return self.batch * self.groups * self.rows * self.channels * places

    def places(self, side: int) -> int:
        """Return the number of lines of the source (0) or target (1); for one line, its places."""
        lines, places = (dim[side] for dim in self._dims)
        return places if lines == 1 else lines

    def forward(self) -> str:
        """Return the dimensions of the convolution as C."""
        return ", ".join(
            f"(along){{{source}, {target}, {taps}, {stride}, 1, {padding}, {dilation}}}"
            for source, target, taps, stride, padding, dilation in self._dims
        )

    def backward(self) -> str:
        """Return the dimensions of the input gradient as C."""
        return ", ".join(
            f"(along){{{target}, {source}, {taps}, 1, {stride}, {-padding}, {-dilation}}}"
            for source, target, taps, stride, padding, dilation in self._dims
        )

    def weight(self, view: View, *, is_turned: bool = False) -> str:
        """Return the strides of a weight as C; with ``is_turned``, channels are rows."""
        row, channel, *taps = view.strides
        taps = taps if len(taps) == 2 else [0, *taps]
        rows, channels = (channel, row) if is_turned else (row, channel)
        group = row * self.rows
        return f"(weight){{{group}, {rows}, {channels}, {taps[0]}, {taps[1]}}}"


def batch_innermost(lowering: Lowering, value: Any) -> View:
    """Return a tensor of samples, channels and places, with the samples innermost in memory."""
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
    """Return the prefix of the kernels for the float type of all operands.

    Raises:
        UnsupportedError: The operands have several types, or none of the float types.
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
    """Add a convolution or its input gradient; inputs are batch, weight and an optional bias."""
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
        bias = lowering.view(args[2])
        inputs.append(bias if bias.strides[0] == 1 else lowering.arranged(bias, (0,)))
        float_prefix(result.dtype, inputs[2].dtype)
    return _correlate(lowering, conv, inputs, total, is_gradient=conv.is_transposed)


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
            # About the number of tiles of a row.
            most_parts=-(-count(weight.shape[1:]) // 4),
        )
        results[1] = total
    if for_bias:
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        results[2] = reduce_view(lowering, dy, dims, "sum", op.result[2])
    return results


# For each result along one dimension: first place, number of places, divisor of an average.
_Windows = list[tuple[int, int, int]]
# Cost of each place, in multiply-adds.
_PER_PLACE = 4


@dataclass(frozen=True, slots=True)
class _Taps:
    """The index of each maximum in its window; only the gradient of that pooling can read it."""

    view: View


def _windows(
    op: Op, source: torch.Tensor, target: torch.Tensor, args: Sequence[Any]
) -> list[_Windows]:
    """Return the windows along both dimensions, cut off at the edges of the source."""
    found: list[_Windows] = []
    if op.name.startswith("_adaptive"):
        for size, number in zip(source.shape[-2:], target.shape[-2:], strict=True):
            bounds = [(i * size // number, -(-(i + 1) * size // number)) for i in range(number)]
            found.append([(start, end - start, end - start) for start, end in bounds])
        return found
    counts_padding = False
    if "max" in op.name:
        kernel, stride, padding, dilation, _ = [*args, *([], 0, 1, False)[len(args) - 1 :]]
        if set(_pair(dilation)) != {1}:
            raise UnsupportedError("dilated windows are not covered")
    else:
        usual = ([], 0, False, True, None)
        kernel, stride, padding, _, counts_padding, divisor = [*args, *usual[len(args) - 1 :]]
        if divisor is not None:
            raise UnsupportedError("a divisor is not covered")
    kernel = _pair(kernel)
    pairs = source.shape[-2:], target.shape[-2:], kernel, _pair(stride or kernel), _pair(padding)
    for size, number, taps, step, outside in zip(*pairs, strict=True):
        found.append([])
        for start in range(-outside, number * step - outside, step):
            first, last = max(0, start), min(start + taps, size)
            if first >= last:
                raise UnsupportedError("a window is empty")
            padded = min(start + taps, size + outside) - start
            found[-1].append((first, last - first, padded if counts_padding else last - first))
    return found


def _pair(given: Any) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * 2 if len(values) == 1 else values


def _samples(lowering: Lowering, given: Any) -> View:
    """Return a tensor with its samples innermost."""
    view = lowering.view(given)
    if len(view.shape) == 3:  # one sample
        view = View(view.buffer, (1, *view.shape), (0, *view.strides), view.offset)
    if len(view.shape) != 4 or 0 in view.shape:
        raise UnsupportedError("only tensors of three or four dimensions, not empty, are covered")
    return batch_innermost(lowering, view)


def _pool(
    lowering: Lowering,
    op: Op,
    kernel: str,
    args: Sequence[Any],
    inputs: Sequence[View],
    results: Sequence[tuple[Sequence[int], torch.dtype]],
) -> list[View]:
    """Add the call of a pooling kernel; a gradient uses the sizes of its pooling's operands."""
    is_gradient = "backward" in op.name
    source, target = op.given(0), op.result[0] if isinstance(op.result, tuple | list) else op.result
    if is_gradient:
        source, target = op.given(1), op.given(0)
    tables, codes, overlaps = "", "", False
    for name, size, windows in zip(
        "vh", source.shape[-2:], _windows(op, source, target, args), strict=True
    ):
        table = ", ".join(f"{{{one}, {taps}, {count}}}" for one, taps, count in windows)
        tables += f"static const window {name}[{len(windows)}] = {{{table}}};\n"
        most = max(taps for _, taps, _ in windows)
        codes += f"(pooled){{{size}, {len(windows)}, {name}, {most}, 1}}, "
        # A place may lie in no window, or in several.
        places = [start + tap for start, taps, _ in windows for tap in range(taps)]
        overlaps |= sorted(places) != list(range(size))
    samples, planes = inputs[0].shape[:2]
    numbers = f"{planes}, {samples}{f', {int(overlaps)}' if is_gradient else ''}"
    outputs: list[View] = []
    for shape, dtype in results:
        order = (1, 2, 3, 0) if len(shape) == 4 else (0, 1, 2)
        outputs.append(lowering.new_view(shape, dtype, order))
    pointers = ", ".join(f"p{number}" for number in range(len(inputs) + len(outputs)))
    prefix = float_prefix(source.dtype)
    lowering.call(
        f"{tables}{prefix}_{kernel}({codes}{numbers}, {pointers}, part, parts);",
        inputs,
        outputs,
        operations=_PER_PLACE * max(count(one.shape) for one in (*inputs, *outputs)),
        most_parts=planes,
    )
    return outputs


@lowers("max_pool2d_with_indices")
def _max_pool(lowering: Lowering, op: Op, args: list[Any]) -> list[Any]:
    out = op.result[0]
    # Use the smallest type that can index the places of a window.
    is_small = count(_pair(args[1])) <= 256
    results = [
        (tuple(out.shape), one) for one in (out.dtype, torch.uint8 if is_small else torch.int32)
    ]
    kernel = f"max_pool_{'small' if is_small else 'large'}"
    out, best = _pool(lowering, op, kernel, args[1:], [_samples(lowering, args[0])], results)
    return [out, _Taps(best)]


@lowers("max_pool2d_with_indices_backward")
def _max_pool_backward(lowering: Lowering, op: Op, args: list[Any]) -> View:
    if not isinstance(args[7], _Taps):
        raise UnsupportedError("its indices are not those of a pooling of this step")
    inputs = [_samples(lowering, args[0]), args[7].view]
    kernel = f"max_pool_gradient_{'small' if args[7].view.dtype == torch.uint8 else 'large'}"
    return _pool(lowering, op, kernel, args[2:7], inputs, [(op.shape, op.result.dtype)])[0]


@lowers(
    "avg_pool2d", "_adaptive_avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"
)
def _average_pool(lowering: Lowering, op: Op, args: list[Any]) -> View:
    kernel, rest = "average_pool", args[1:]
    if "backward" in op.name:
        kernel, rest = "average_pool_gradient", args[2:]
    results = [(op.shape, op.result.dtype)]
    return _pool(lowering, op, kernel, rest, [_samples(lowering, args[0])], results)[0]
