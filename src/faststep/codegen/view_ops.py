"""Operators that change the look at a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.operators import Handler, Op, argument, lowers
from faststep.codegen.program import (
    Const,
    Indirect,
    Joined,
    UnsupportedError,
    Value,
    View,
    contiguous,
)

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


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
