"""Operators that change the look at a tensor, or put tensors together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import Handler, Op, argument, lowers
from faststep.codegen.program import (
    Const,
    Element,
    Indirect,
    Joined,
    UnsupportedError,
    Value,
    View,
    contiguous,
)


@lowers("alias", "clone", "detach", "lift_fresh_copy", "contiguous")
def _same(lowering: Lowering, op: Op, args: list[Any]) -> Any:
    return args[0]


def _on_view(change: Callable[[Lowering, Op, View, list[Any]], Any]) -> Handler:
    def handler(lowering: Lowering, op: Op, args: list[Any]) -> Any:
        if isinstance(args[0], Const):
            results = op.result
            if isinstance(results, list | tuple):
                return [replace(args[0], shape=tuple(one.shape)) for one in results]
            return replace(args[0], shape=op.shape)
        if isinstance(args[0], Joined):
            found = _parts_of(lowering, args[0], op, args)
            if found is not None:
                return found
        return change(lowering, op, lowering.view(args[0]), args)

    return handler


def _parts_of(lowering: Lowering, joined: Joined, op: Op, args: list[Any]) -> Any:
    """Return what a look at joined tensors is, where it is some of these themselves."""
    rank = len(joined.shape)
    name = op.name
    if name == "slice":
        dim, start, size, step = slice_bounds(joined.shape, args[1:])
        return joined.slice(dim, start, size) if step == 1 else None
    if name in ("split", "split_with_sizes"):
        found = [joined.slice(*bounds) for bounds in _split_bounds(op, rank, args)]
        return None if None in found else found
    if name == "select" and args[1] % rank == joined.dim:
        return _at(lowering, joined, args[2] % joined.shape[joined.dim])
    if name == "unbind" and argument(args, 1, 0) % rank == joined.dim:
        return [_at(lowering, joined, index) for index in range(joined.shape[joined.dim])]
    # All of them at once is the usual way to read these: each for itself where some are not read.
    if name == "permute" or (
        name in ("transpose", "t") and any(isinstance(one, Const) for one in joined.parts)
    ):
        dims = _dims_of(name, rank, args[1:])
        parts = [
            replace(part, shape=tuple(part.shape[dim] for dim in dims))
            if isinstance(part, Const)
            else lowering.view(part).permuted(dims)
            for part in joined.parts
        ]
        shape = tuple(joined.shape[dim] for dim in dims)
        return Joined(shape, joined.dtype, dims.index(joined.dim), tuple(parts))
    return None


def _at(lowering: Lowering, joined: Joined, index: int) -> Value:
    """Return joined tensors at one index of the dimension along which they lie."""
    part = joined.slice(joined.dim, index, 1)
    shape = tuple(size for dim, size in enumerate(joined.shape) if dim != joined.dim)
    if isinstance(part, Const):
        return replace(part, shape=shape)
    if part is None:
        return lowering.view(joined).selected(joined.dim, index)
    return lowering.view(part).selected(joined.dim, 0)


def _dims_of(name: str, rank: int, args: list[Any]) -> list[int]:
    """Return where each dimension of a permuted tensor was before."""
    if name == "permute":
        return [dim % rank for dim in args[0]]
    dims = list(range(rank))
    one, other = (dim % rank for dim in args) if name == "transpose" else (0, rank - 1)
    dims[one], dims[other] = dims[other], dims[one]
    return dims


@lowers("permute", "t", "transpose")
@_on_view
def _permute(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    rank = len(view.shape)
    return view.permuted(_dims_of(op.name, rank, args[1:]) if rank else [])


@lowers("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "view_as")
@_on_view
def _reshape(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    if op.result.dtype != view.dtype:
        raise UnsupportedError("it takes bits for another type")
    return lowering.reshaped(view, op.shape)


@lowers("expand")
@_on_view
def _expand(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    return view.expanded(op.shape)


@lowers("select")
@_on_view
def _select(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    dim = args[1] % len(view.shape)
    return view.selected(dim, args[2] % view.shape[dim])


@lowers("slice")
@_on_view
def _slice(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    return view.sliced(*slice_bounds(view.shape, args[1:]))


def slice_bounds(shape: Sequence[int], args: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return the dimension of a slice, where it begins, its size and its step."""
    dim, start, end, step = [*args, *(0, None, None, 1)[len(args) :]]
    dim %= len(shape)
    indices = range(shape[dim])[start:end:step]
    return dim, indices.start, len(indices), step


@lowers("unbind")
@_on_view
def _unbind(lowering: Lowering, op: Op, view: View, args: list[Any]) -> list[View]:
    dim = argument(args, 1, 0) % len(view.shape)
    return [view.selected(dim, index) for index in range(view.shape[dim])]


@lowers("split", "split_with_sizes")
@_on_view
def _split(lowering: Lowering, op: Op, view: View, args: list[Any]) -> list[View]:
    return [view.sliced(*bounds) for bounds in _split_bounds(op, len(view.shape), args)]


def _split_bounds(op: Op, rank: int, args: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return the dimension of each part of a split, where it begins, and its size."""
    dim = argument(args, 2, 0) % rank
    sizes = [part.shape[dim] for part in op.result]
    return [(dim, sum(sizes[:number]), size) for number, size in enumerate(sizes)]


@lowers("rev", "flip")
@_on_view
def _flip(lowering: Lowering, op: Op, view: View, args: list[Any]) -> Value:
    found: Value = view
    for dim in {dim % max(1, len(view.shape)) for dim in args[1]} if view.shape else ():
        last = view.shape[dim] - 1
        index = lowering.pointwise(f"{last} - {{i{dim}}}", [], view.shape, torch.int64)
        indirect = Indirect(lowering.view(found), dim, index)
        found = lowering.pointwise("{0}", [indirect], view.shape, view.dtype)
    return found


@lowers("repeat")
@_on_view
def _repeat(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    new = len(args[1]) - len(view.shape)
    sizes = (*[1] * new, *view.shape)
    strides = (*[0] * new, *view.strides)
    wide = View(
        view.buffer,
        tuple(size for pair in zip(args[1], sizes, strict=True) for size in pair),
        tuple(stride for one in strides for stride in (0, one)),
        view.offset,
    )
    return lowering.reshaped(wide, op.shape)


@lowers("diagonal")
@_on_view
def _diagonal(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    offset, one, other = [*args[1:], *(0, 0, 1)[len(args) - 1 :]]
    one, other = one % len(view.shape), other % len(view.shape)
    start = max(0, offset) * view.strides[other] + max(0, -offset) * view.strides[one]
    kept = [dim for dim in range(len(view.shape)) if dim not in (one, other)]
    strides = (*(view.strides[dim] for dim in kept), view.strides[one] + view.strides[other])
    return View(view.buffer, op.shape, strides, view.offset + start)


@lowers("unfold")
@_on_view
def _unfold(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    dim, _, step = args[1] % len(view.shape), *args[2:]
    strides = list(view.strides)
    strides[dim] *= step
    return View(view.buffer, op.shape, (*strides, view.strides[dim]), view.offset)


@lowers("as_strided")
@_on_view
def _as_strided(lowering: Lowering, op: Op, view: View, args: list[Any]) -> View:
    given = op.given(0)
    shape, strides = tuple(args[1]), tuple(args[2])
    offset = args[3] if len(args) > 3 and args[3] is not None else given.storage_offset()
    order = tuple(sorted(range(given.dim()), key=lambda dim: -given.stride(dim)))
    layout = contiguous(given.shape, order)
    is_dense = all(
        size == 1 or one == other
        for size, one, other in zip(given.shape, given.stride(), layout, strict=True)
    )
    # Its memory as torch has it is the tensor's own and nothing more.
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if not is_dense or given.storage_offset() or last >= max(1, given.numel()):
        raise UnsupportedError("it looks at memory outside of a tensor")
    dense = lowering.new_view(view.shape, view.dtype, order)
    lowering.copy(view, dense)
    return View(dense.buffer, shape, strides, int(offset))


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
