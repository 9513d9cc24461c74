"""Convolutions and pooling over one or two dimensions, with the batch innermost."""

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


# Of each place, as of numbers multiplied and added.
_PER_PLACE = 4


@dataclass(frozen=True, slots=True)
class _Taps:
    """Which of its window each maximum is; only the gradient of that pooling can read it."""

    view: View


@dataclass(frozen=True, slots=True)
class _Dimension:
    """The windows along one dimension.

    Args:
        size: Places of the source.
        windows: First place, number of places and count in an average, of each result.
        step: From one place of a window to the next.
    """

    size: int
    windows: tuple[tuple[int, int, int], ...]
    step: int = 1

    def overlaps(self) -> bool:
        """Return whether a place is in no window, or in several, or windows have gaps."""
        places = [start + tap * self.step for start, taps, _ in self.windows for tap in range(taps)]
        return sorted(places) != list(range(self.size))

    def code(self, name: str) -> tuple[str, str]:
        """Return a table of the windows, and the dimension, as C."""
        table = ", ".join(f"{{{one}, {taps}, {size}}}" for one, taps, size in self.windows)
        most = max(taps for _, taps, _ in self.windows)
        number = len(self.windows)
        return (
            f"static const window {name}[{number}] = {{{table}}};\n",
            f"(pooled){{{self.size}, {number}, {name}, {most}, {self.step}}}",
        )


def _windows(
    size: int, number: int, taps: int, stride: int, padding: int, step: int, *, counts_padding: bool
) -> _Dimension:
    """Return windows of a fixed size, cut off where they are outside."""
    windows: list[tuple[int, int, int]] = []
    for index in range(number):
        start = index * stride - padding
        inside = [start + tap * step for tap in range(taps) if 0 <= start + tap * step < size]
        if not inside:
            raise UnsupportedError("a window is empty")
        padded = min(start + taps, size + padding) - start
        windows.append((inside[0], len(inside), padded if counts_padding else len(inside)))
    return _Dimension(size, tuple(windows), step)


def _adaptive(size: int, number: int) -> _Dimension:
    """Return windows that together cover a dimension."""
    bounds = [(index * size // number, -(-(index + 1) * size // number)) for index in range(number)]
    return _Dimension(size, tuple((start, end - start, end - start) for start, end in bounds))


def _pair(given: Any, usual: Sequence[int]) -> list[int]:
    values = [given] if isinstance(given, int) else list(given or usual)
    return values * 2 if len(values) == 1 else values


def _fixed_windows(
    source: torch.Tensor,
    target: torch.Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    step: Any,
    *,
    counts_padding: bool = False,
) -> list[_Dimension]:
    """Return the windows along both dimensions."""
    kernel = _pair(kernel, ())
    sizes = zip(
        source.shape[-2:],
        target.shape[-2:],
        kernel,
        _pair(stride, kernel),
        _pair(padding, ()),
        _pair(step, ()),
        strict=True,
    )
    return [_windows(*one, counts_padding=counts_padding) for one in sizes]


def _max_windows(
    source: torch.Tensor, target: torch.Tensor, args: Sequence[Any]
) -> list[_Dimension]:
    kernel, stride, padding, step, _ = [*args, *([], 0, 1, False)[len(args) - 1 :]]
    return _fixed_windows(source, target, kernel, stride, padding, step)


def _average_windows(
    op: Op, source: torch.Tensor, target: torch.Tensor, args: Sequence[Any]
) -> list[_Dimension]:
    if op.name.startswith("_adaptive"):
        sizes = zip(source.shape[-2:], target.shape[-2:], strict=True)
        return [_adaptive(size, number) for size, number in sizes]
    kernel, stride, padding, _, counts_padding, divisor = [
        *args,
        *([], 0, False, True, None)[len(args) - 1 :],
    ]
    v, h = _fixed_windows(source, target, kernel, stride, padding, 1, counts_padding=counts_padding)
    if divisor is not None:
        v, h = (
            _Dimension(one.size, tuple((*window[:2], count) for window in one.windows))
            for one, count in ((v, divisor), (h, 1))
        )
    return [v, h]


def _samples(lowering: Lowering, given: Any) -> tuple[View, int, int]:
    """Return a tensor with its samples innermost, its planes, and its samples."""
    view = lowering.view(given)
    if len(view.shape) == 3:  # one sample
        view = View(view.buffer, (1, *view.shape), (0, *view.strides), view.offset)
    if len(view.shape) != 4 or 0 in view.shape:
        raise UnsupportedError("only tensors of three or four dimensions, not empty, are covered")
    return batch_innermost(lowering, view), view.shape[1], view.shape[0]


def _new(lowering: Lowering, shape: Sequence[int], dtype: torch.dtype) -> View:
    rank = len(shape)
    return lowering.new_view(tuple(shape), dtype, (1, 2, 3, 0) if rank == 4 else (0, 1, 2))


def _pool(
    lowering: Lowering,
    kernel: str,
    dims: Sequence[_Dimension],
    inputs: Sequence[View],
    outputs: Sequence[View],
    sizes: Sequence[int],
    *,
    is_gradient: bool = False,
) -> None:
    """Add the call of a kernel."""
    tables, codes = zip(
        *(dim.code(name) for dim, name in zip(dims, "vh", strict=True)), strict=True
    )
    numbers = [str(size) for size in sizes]
    if is_gradient:
        numbers.append(str(int(any(dim.overlaps() for dim in dims))))
    pointers = [f"p{number}" for number in range(len(inputs) + len(outputs))]
    call = f"{kernel}({', '.join([*codes, *numbers, *pointers, 'part', 'parts'])});"
    places = max(count(one.shape) for one in (*inputs, *outputs))
    lowering.call(
        "".join(tables) + call,
        inputs,
        outputs,
        operations=_PER_PLACE * places,
        most_parts=sizes[0],
    )


@lowers("max_pool2d_with_indices")
def _max_pool(lowering: Lowering, op: Op, args: list[Any]) -> list[Any]:
    source, target = op.given(0), op.result[0]
    dims = _max_windows(source, target, args[1:])
    prefix = float_prefix(source.dtype)
    x, planes, samples = _samples(lowering, args[0])
    suffix, dtype = _tap_type(args[1])
    out = _new(lowering, target.shape, target.dtype)
    best = _new(lowering, target.shape, dtype)
    _pool(lowering, f"{prefix}_max_pool_{suffix}", dims, [x], [out, best], [planes, samples])
    return [out, _Taps(best)]


def _tap_type(kernel: Any) -> tuple[str, torch.dtype]:
    """Return the kernels for a window, and the smallest type that numbers its places."""
    height, width = _pair(kernel, ())
    return ("small", torch.uint8) if height * width <= 256 else ("large", torch.int32)


@lowers("max_pool2d_with_indices_backward")
def _max_pool_backward(lowering: Lowering, op: Op, args: list[Any]) -> View:
    gradient, source = op.given(0), op.given(1)
    if not isinstance(args[7], _Taps):
        raise UnsupportedError("its indices are not those of a pooling of this step")
    dims = _max_windows(source, gradient, args[2:7])
    prefix = float_prefix(gradient.dtype)
    dy, planes, samples = _samples(lowering, args[0])
    suffix, _ = _tap_type(args[2])
    result = _new(lowering, op.shape, op.result.dtype)
    kernel = f"{prefix}_max_pool_gradient_{suffix}"
    inputs = [dy, args[7].view]
    _pool(lowering, kernel, dims, inputs, [result], [planes, samples], is_gradient=True)
    return result


@lowers("avg_pool2d", "_adaptive_avg_pool2d")
def _average_pool(lowering: Lowering, op: Op, args: list[Any]) -> View:
    source, target = op.given(0), op.result
    prefix = float_prefix(source.dtype)
    dims = _average_windows(op, source, target, args[1:])
    x, planes, samples = _samples(lowering, args[0])
    out = _new(lowering, op.shape, target.dtype)
    _pool(lowering, f"{prefix}_average_pool", dims, [x], [out], [planes, samples])
    return out


@lowers("avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
def _average_pool_backward(lowering: Lowering, op: Op, args: list[Any]) -> View:
    gradient, source = op.given(0), op.given(1)
    prefix = float_prefix(gradient.dtype)
    dims = _average_windows(op, source, gradient, args[2:])
    dy, planes, samples = _samples(lowering, args[0])
    result = _new(lowering, op.shape, op.result.dtype)
    kernel = f"{prefix}_average_pool_gradient"
    _pool(lowering, kernel, dims, [dy], [result], [planes, samples], is_gradient=True)
    return result
