"""Operators that put tensors together, or one into another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.operators import Op, argument, lowers
from faststep.codegen.program import Const, Element, Joined, UnsupportedError, Value, View
from faststep.codegen.view_ops import slice_bounds

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


@lowers("cat")
def _cat(lowering: Lowering, op: Op, args: list[Any]) -> Joined:
    shape, dtype = op.shape, op.result.dtype
    dim = argument(args, 1, 0) % len(shape)
    # An old rule of torch: an empty tensor of one dimension joins anything.
    parts = [lowering.value(part) for part in args[0] if len(part.shape) == len(shape)]
    parts = [
        part if part.dtype == dtype else lowering.pointwise("{0}", [part], part.shape, dtype)
        for part in parts
    ]
    return Joined(shape, dtype, dim, tuple(part for part in parts if part.shape[dim]))


@lowers("select_scatter")
def _select_scatter(lowering: Lowering, op: Op, args: list[Any]) -> Joined:
    shape, dtype = op.shape, op.result.dtype
    dim = args[2] % len(shape)
    index = args[3] % shape[dim]
    part = lowering.view(args[1])
    if part.dtype != dtype:
        raise UnsupportedError("it puts one type into another")
    wide = View(
        part.buffer,
        (*part.shape[:dim], 1, *part.shape[dim:]),
        (*part.strides[:dim], 0, *part.strides[dim:]),
        part.offset,
    )
    return _between(lowering, op, args[0], dim, index, wide)


@lowers("slice_scatter")
def _slice_scatter(lowering: Lowering, op: Op, args: list[Any]) -> View | Joined:
    shape, dtype = op.shape, op.result.dtype
    dim, start, size, step = slice_bounds(shape, args[2:])
    part = lowering.value(args[1])
    if step == 1 and size and part.dtype == dtype:
        return _between(lowering, op, args[0], dim, start, part)
    joined = _base_copy(lowering, args[0], shape, dtype)
    lowering.copy(part, joined.sliced(dim, start, size, step))
    return joined


def _between(lowering: Lowering, op: Op, base: Any, dim: int, start: int, part: Value) -> Joined:
    """Return a tensor with a part in place of what is there along one dimension."""
    end = start + part.shape[dim]
    before = _slice_of(lowering, base, dim, 0, start)
    after = _slice_of(lowering, base, dim, end, op.shape[dim] - end)
    return Joined(op.shape, op.result.dtype, dim, (*before, part, *after))


def _slice_of(lowering: Lowering, base: Any, dim: int, start: int, size: int) -> list[Value]:
    """Return the tensors that lie in a slice of another."""
    if not size:
        return []
    if isinstance(base, Joined) and base.dim == dim:
        found: list[Value] = []
        at = 0
        for part in base.parts:
            first, last = max(start, at), min(start + size, at + part.shape[dim])
            if first < last:
                if last - first == part.shape[dim]:
                    found.append(part)
                else:
                    found += _slice_of(lowering, part, dim, first - at, last - first)
            at += part.shape[dim]
        return found
    if isinstance(base, Const):
        shape = list(base.shape)
        shape[dim] = size
        return [replace(base, shape=tuple(shape))]
    return [lowering.view(base).sliced(dim, start, size)]


def _base_copy(lowering: Lowering, base: Any, shape: tuple[int, ...], dtype: torch.dtype) -> View:
    base = lowering.value(base)
    order = None
    if isinstance(base, Element):
        order = lowering.place(base).order
    elif isinstance(base, View):
        order = base.order()
    joined = lowering.new_view(shape, dtype, order)
    lowering.copy(base, joined)
    return joined


@lowers("constant_pad_nd")
def _pad(lowering: Lowering, op: Op, args: list[Any]) -> View:
    shape, dtype = op.shape, op.result.dtype
    given = lowering.view(args[0])
    value = args[2] if len(args) > 2 and args[2] is not None else 0
    padded = lowering.new_view(shape, dtype, given.order())
    lowering.copy(Const.of(value, shape, dtype), padded)
    place, source = padded, given
    for pair in range(len(args[1]) // 2):
        dim = len(shape) - 1 - pair
        before, after = args[1][2 * pair], args[1][2 * pair + 1]
        source = source.sliced(
            dim, max(0, -before), given.shape[dim] + min(0, before) + min(0, after)
        )
        place = place.sliced(dim, max(0, before), source.shape[dim])
    lowering.copy(source, place)
    return padded
