"""Lowering of operators that view, concatenate or index tensors."""

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
    loops_over,
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
    """Return a view of joined tensors without joining them; None if it needs the whole."""
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
    # Permute part by part. Transpose the whole join, since its reader usually reads all parts; do
    # it by parts only if one is a constant.
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
    """Return joined tensors at one index of the dimension of the join."""
    part = joined.slice(joined.dim, index, 1)
    shape = tuple(size for dim, size in enumerate(joined.shape) if dim != joined.dim)
    if isinstance(part, Const):
        return replace(part, shape=shape)
    if part is None:
        return lowering.view(joined).selected(joined.dim, index)
    return lowering.view(part).selected(joined.dim, 0)


def _dims_of(name: str, rank: int, args: list[Any]) -> list[int]:
    """Return the original dimension of each dimension of a permuted tensor."""
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
    """Return dimension, start, size and step of a slice."""
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
    """Return dimension, start and size of each part of a split."""
    dim = argument(args, 2, 0) % rank
    sizes = [part.shape[dim] for part in op.result]
    return [(dim, sum(sizes[:number]), size) for number, size in enumerate(sizes)]


@lowers("rev")
@_on_view
def _flip(lowering: Lowering, op: Op, view: View, args: list[Any]) -> Value:
    found: Value = view
    for dim in {dim % max(1, len(view.shape)) for dim in args[1]} if view.shape else ():
        last = view.shape[dim] - 1
        index = lowering.pointwise(f"{last} - {{i{dim}}}", [], view.shape, torch.int64)
        indirect = Indirect(lowering.view(found), dim, index)
        found = lowering.pointwise("{0}", [indirect], view.shape, view.dtype)
    return found


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
    # Allow only views within the tensor's own elements in torch's layout.
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
    # Skip empty tensors of one dimension, which torch's legacy rule allows in any join.
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
    base, order = lowering.value(args[0]), None
    if isinstance(base, Element):
        order = lowering.place(base).order
    elif isinstance(base, View):
        order = base.order()
    joined = lowering.new_view(shape, dtype, order)
    lowering.copy(base, joined)
    lowering.copy(part, joined.sliced(dim, start, size, step))
    return joined


def _between(lowering: Lowering, op: Op, base: Any, dim: int, start: int, part: Value) -> Joined:
    """Return a tensor with a slice along one dimension replaced by a part."""
    end = start + part.shape[dim]
    before = _slice_of(lowering, base, dim, 0, start)
    after = _slice_of(lowering, base, dim, end, op.shape[dim] - end)
    return Joined(op.shape, op.result.dtype, dim, (*before, part, *after))


def _slice_of(lowering: Lowering, base: Any, dim: int, start: int, size: int) -> list[Value]:
    """Return the tensors that make up a slice of a tensor."""
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


@lowers("gather")
def _gather(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    source, dim = lowering.view(args[0]), args[1] % max(1, len(op.shape))
    index = _checked(lowering, args[2], source.shape[dim])
    return lowering.pointwise("{0}", [Indirect(source, dim, index)], op.shape, op.result.dtype)


def _checked(lowering: Lowering, index: Any, size: int) -> View:
    """Return nonnegative indices; add a check that ends the step if one is out of range.

    Readers depend on the check's output, so that no loop before the check uses the indices.
    """
    view = lowering.view(index)
    if view.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(f"an index of {view.dtype} is not covered")
    wrapped = lowering.new_view(view.shape, torch.int64, view.order())
    body = (
        f"int64_t bad = 0; {loops_over(view.shape)} {{ const int64_t one = p0[{view.address()}]; "
        f"bad |= one < {-size} || one >= {size}; "
        f"p1[{wrapped.address()}] = one < 0 ? one + {size} : one; }} return bad != 0;"
    )
    lowering.call(body, [view], [wrapped], checks=True)
    return wrapped


def _take_rows(lowering: Lowering, op: Op, table: Any, dim: int, index: Any) -> Value:
    """Return a table's elements with the index's dimensions in place of one dimension."""
    shape, source = op.shape, lowering.view(table)
    dim %= len(source.shape)
    checked = _checked(lowering, index, source.shape[dim])
    num_index = len(checked.shape)
    if not num_index:
        raise UnsupportedError("an index without dimensions is not covered")
    after = len(source.shape) - dim - 1
    wide = lowering.reshaped(checked, (*checked.shape, *[1] * after))
    # View the table with the index's dimensions in place of its own; broadcast all but the last.
    before, own, rest = source.strides[:dim], source.strides[dim], source.strides[dim + 1 :]
    broad = View(source.buffer, shape, (*before, *[0] * (num_index - 1), own, *rest), source.offset)
    indirect = Indirect(broad, dim + num_index - 1, wide.expanded(shape))
    return lowering.pointwise("{0}", [indirect], shape, op.result.dtype)


@lowers("index", "_unsafe_index")
def _index(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    given = [number for number, one in enumerate(args[1]) if one is not None]
    if any(op.given(1, number).dtype == torch.bool for number in given):
        raise UnsupportedError("an index of bools is not covered")
    if len(given) == 1 and op.given(1, given[0]).dim():
        return _take_rows(lowering, op, args[0], given[0], args[1][given[0]])
    source = lowering.view(args[0])
    indices = {number: args[1][number] for number in given}
    places, shape, strides = _places(lowering, source.shape, source.strides, indices)
    # Index a dimension of stride 1 by the offsets of the elements.
    dim = strides.index(None)
    steps = tuple(int(d == dim) if one is None else one for d, one in enumerate(strides))
    broad = View(source.buffer, shape, steps, source.offset)
    found = lowering.pointwise("{0}", [Indirect(broad, dim, places)], shape, op.result.dtype)
    return found if shape == op.shape else lowering.reshaped(lowering.view(found), op.shape)


def _places(
    lowering: Lowering, shape: Sequence[int], strides: Sequence[int], indices: dict[int, Any]
) -> tuple[View, tuple[int, ...], tuple[int | None, ...]]:
    """Return the offsets of the elements of a tensor that several indices select.

    Returns:
        The sum of the indices' offsets, as a view of the result's shape; that shape, with one
        dimension for indices without dimensions; and the tensor's strides in that shape, None for
        the dimensions of the indices.
    """
    views = {dim: _checked(lowering, index, shape[dim]) for dim, index in indices.items()}
    common = tuple(torch.broadcast_shapes(*(view.shape for view in views.values()))) or (1,)
    dims = sorted(views)
    terms = " + ".join(f"{{{number}}} * {strides[dim]}" for number, dim in enumerate(dims))
    inputs = [views[dim].expanded(common) for dim in dims]
    summed = lowering.view(lowering.pointwise(terms, inputs, common, torch.int64))
    rest = [dim for dim in range(len(shape)) if dim not in views]
    is_together = dims == list(range(dims[0], dims[-1] + 1))
    before = dims[0] if is_together else 0
    sizes = [shape[dim] for dim in rest]
    steps: list[int | None] = [strides[dim] if shape[dim] > 1 else 0 for dim in rest]
    full = (*sizes[:before], *common, *sizes[before:])
    of_places = (*[0] * before, *summed.strides, *[0] * (len(rest) - before))
    places = View(summed.buffer, full, of_places, summed.offset)
    return places, full, (*steps[:before], *[None] * len(common), *steps[before:])


@lowers("scatter", "scatter_add")
def _scatter(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    shape, dtype = op.shape, op.result.dtype
    adds = op.name == "scatter_add"
    if op.kwargs.get("reduce") is not None or not shape:
        raise UnsupportedError("only what replaces elements, or adds to them, is covered")
    dim = args[1] % len(shape)
    sizes = tuple(op.given(2).shape)
    is_one = sizes == (*shape[:dim], 1, *shape[dim + 1 :])
    places = _checked(lowering, args[2], shape[dim])
    if not adds and is_one and isinstance(args[3], bool | int | float):
        numbers = lowering.value(args[3], dtype), lowering.value(args[0])
        expression = f"{{0}} == {{i{dim}}} ? {{1}} : {{2}}"
        return lowering.pointwise(expression, [places.expanded(shape), *numbers], shape, dtype)
    # Copy the tensor, then change the copy at the indices one by one.
    source = lowering.view(lowering.value(args[3], dtype))
    if not source.shape:
        source = source.expanded(places.shape)
    total = lowering.new_view(shape, dtype)
    lowering.copy(lowering.value(args[0]), total)
    to = " + ".join(
        f"p0[{places.address()}] * {stride}" if d == dim else f"i{d} * {stride}"
        for d, stride in enumerate(total.strides)
    )
    text = f"p2[{to}] {'+=' if adds else '='} p1[{source.address()}]"
    lowering.call(f"{loops_over(places.shape)} {text};", [places, source], [total])
    return total


@lowers("index_put", "_unsafe_index_put")
def _index_put(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    """Return a copy of a tensor with values stored or added at indices.

    The gradient of an embedding adds rows to a table.
    """
    shape, dtype = op.shape, op.result.dtype
    base, given, values = args[:3]
    adds = bool(args[3]) if len(args) > 3 else bool(op.kwargs.get("accumulate"))
    indices = {number: one for number, one in enumerate(given) if one is not None}
    if any(op.given(1, number).dtype == torch.bool for number in indices):
        raise UnsupportedError("an index of bools is not covered")
    total = lowering.new_view(shape, dtype)
    lowering.copy(lowering.value(base), total)
    places, full, strides = _places(lowering, shape, total.strides, indices)
    source = lowering.view(values).expanded(full)
    others = (f"i{d} * {stride}" for d, stride in enumerate(strides) if stride)
    to = " + ".join([f"p0[{places.address()}]", *others])
    body = f"{loops_over(full)} p2[{to}] {'+=' if adds else '='} p1[{source.address()}];"
    lowering.call(body, [places, source], [total])
    return total
