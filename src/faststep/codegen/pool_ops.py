"""Pooling over one or two dimensions, with the batch innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.conv_ops import batch_innermost, float_prefix
from faststep.codegen.operators import Op, lowers
from faststep.codegen.program import UnsupportedError, View, count

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


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
