"""Operators that read or write at places that tensors of integers name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import Op, lowers
from faststep.codegen.program import Const, Indirect, UnsupportedError, Value, View

_REDUCTIONS = {
    "sum": "{0} += {1}",
    "prod": "{0} *= {1}",
    "amax": "{0} = {1} != {1} || {1} > {0} ? {1} : {0}",
    "amin": "{0} = {1} != {1} || {1} < {0} ? {1} : {0}",
}


@lowers("gather")
def _gather(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    source, dim = lowering.view(args[0]), args[1] % max(1, len(op.shape))
    index = _checked(lowering, args[2], source.shape[dim])
    return lowering.pointwise("{0}", [Indirect(source, dim, index)], op.shape, op.result.dtype)


def _checked(lowering: Lowering, index: Any, size: int) -> View:
    """Return indices from 0 on, after a check that ends the step if one is outside.

    What reads by them depends on the check, so that no loop before it does.
    """
    view = lowering.view(index)
    if view.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(f"an index of {view.dtype} is not covered")
    wrapped = lowering.new_view(view.shape, torch.int64, view.order())
    loops, at = _nest(view.shape)
    body = (
        f"int64_t bad = 0; {loops} {{ const int64_t one = p0[{at(view)}]; "
        f"bad |= one < {-size} || one >= {size}; "
        f"p1[{at(wrapped)}] = one < 0 ? one + {size} : one; }} return bad != 0;"
    )
    lowering.call(body, [view], [wrapped], checks=True)
    return wrapped


@lowers("embedding", "index_select")
def _index_select(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    if op.name == "embedding":
        return _take_rows(lowering, op, args[0], 0, args[1])
    return _take_rows(lowering, op, args[0], args[1], args[2])


def _take_rows(lowering: Lowering, op: Op, table: Any, dim: int, index: Any) -> Value:
    """Return a tensor in which an index takes the place of a dimension of the table."""
    shape, source = op.shape, lowering.view(table)
    dim %= len(source.shape)
    checked = _checked(lowering, index, source.shape[dim])
    num_index = len(checked.shape)
    if not num_index:
        raise UnsupportedError("an index without dimensions is not covered")
    after = len(source.shape) - dim - 1
    wide = checked.reshaped((*checked.shape, *[1] * after))
    assert wide is not None
    # The table, as if the index's dimensions were its own, all but the last of them broadcast.
    before, own, rest = source.strides[:dim], source.strides[dim], source.strides[dim + 1 :]
    broad = View(source.buffer, shape, (*before, *[0] * (num_index - 1), own, *rest), source.offset)
    indirect = Indirect(broad, dim + num_index - 1, wide.expanded(shape))
    return lowering.pointwise("{0}", [indirect], shape, op.result.dtype)


@lowers("index", "_unsafe_index")
def _index(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    given = [number for number, one in enumerate(args[1]) if one is not None]
    if any(op.given(1, number).dtype == torch.bool for number in given):
        raise UnsupportedError("the size of what an index of bools takes is not known beforehand")
    if len(given) == 1 and op.given(1, given[0]).dim():
        return _take_rows(lowering, op, args[0], given[0], args[1][given[0]])
    source = lowering.view(args[0])
    indices = {number: args[1][number] for number in given}
    places, shape, strides = _places(lowering, source.shape, source.strides, indices)
    # The places of elements take the place of an index of step 1.
    dim = strides.index(None)
    steps = tuple(int(d == dim) if one is None else one for d, one in enumerate(strides))
    broad = View(source.buffer, shape, steps, source.offset)
    found = lowering.pointwise("{0}", [Indirect(broad, dim, places)], shape, op.result.dtype)
    if shape == op.shape:
        return found
    flat = lowering.view(found).reshaped(op.shape)
    assert flat is not None
    return flat


def _places(
    lowering: Lowering, shape: Sequence[int], strides: Sequence[int], indices: dict[int, Any]
) -> tuple[View, tuple[int, ...], tuple[int | None, ...]]:
    """Return where in a tensor the elements are that several indices name.

    Returns:
        What all indices together add to an address, as a view of the result's shape; that shape,
        with a dimension for indices without any; and the strides of the tensor in it, None for the
        dimensions of the indices.
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


@lowers("scatter", "scatter_add", "scatter_reduce")
def _scatter(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    shape, dtype = op.shape, op.result.dtype
    how, includes_self = op.kwargs.get("reduce"), True
    if op.name == "scatter_add":
        how = "sum"
    elif op.name == "scatter_reduce":
        how, includes_self = args[4], [*args, *op.kwargs.values(), True][5]
    is_known = (how in _REDUCTIONS and op.name != "scatter") or how is None
    if not is_known or not includes_self or not shape:
        raise UnsupportedError(f"{how} is not covered, or not without the elements themselves")
    dim = args[1] % len(shape)
    sizes = tuple(op.given(2).shape)
    is_one = sizes == (*shape[:dim], 1, *shape[dim + 1 :])
    places = _checked(lowering, args[2], shape[dim])
    if how is None and is_one and isinstance(args[3], bool | int | float):
        numbers = lowering.value(args[3], dtype), lowering.value(args[0])
        expression = f"{{0}} == {{i{dim}}} ? {{1}} : {{2}}"
        return lowering.pointwise(expression, [places.expanded(shape), *numbers], shape, dtype)
    # A copy of the tensor that is changed at the indices, one by one.
    source = lowering.view(lowering.value(args[3], dtype))
    if not source.shape:
        source = source.expanded(places.shape)
    total = lowering.new_view(shape, dtype)
    lowering.copy(lowering.value(args[0]), total)
    loops, at = _nest(places.shape)
    to = " + ".join(
        f"p0[{at(places)}] * {stride}" if d == dim else f"i{d} * {stride}"
        for d, stride in enumerate(total.strides)
    )
    change = "{0} = {1}" if how is None else _REDUCTIONS[how]
    text = change.format(f"p2[{to}]", f"p1[{at(source)}]")
    lowering.call(f"{loops} {text};", [places, source], [total])
    return total


@lowers("index_put", "_unsafe_index_put")
def _index_put(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    """Return a copy of a tensor with other elements, or more, at the places of indices.

    Rows added to a table are the gradient of an embedding.
    """
    shape, dtype = op.shape, op.result.dtype
    base, given, values = args[:3]
    accumulates = bool(args[3]) if len(args) > 3 else bool(op.kwargs.get("accumulate"))
    indices = {number: one for number, one in enumerate(given) if one is not None}
    if any(op.given(1, number).dtype == torch.bool for number in indices):
        return _put_masked(lowering, op, base, indices, values, accumulates=accumulates)
    total = lowering.new_view(shape, dtype)
    lowering.copy(lowering.value(base), total)
    places, wide, strides = _places(lowering, shape, total.strides, indices)
    source = lowering.view(values).expanded(wide)
    loops, at = _nest(wide)
    to = " + ".join(
        [f"p0[{at(places)}]", *(f"i{d} * {stride}" for d, stride in enumerate(strides) if stride)]
    )
    sign = "+=" if accumulates else "="
    lowering.call(f"{loops} p2[{to}] {sign} p1[{at(source)}];", [places, source], [total])
    return total


def _put_masked(
    lowering: Lowering,
    op: Op,
    base: Any,
    indices: dict[int, Any],
    values: Any,
    *,
    accumulates: bool,
) -> Value:
    """Return a tensor with one number where a mask is."""
    shape, dtype = op.shape, op.result.dtype
    value = lowering.value(values)
    if list(indices) != [0] or any(size != 1 for size in value.shape):
        raise UnsupportedError("the size of what an index of bools takes is not known beforehand")
    mask = lowering.view(indices[0])
    rest = len(shape) - len(mask.shape)
    wide = View(mask.buffer, shape, (*mask.strides, *[0] * rest), mask.offset)
    if isinstance(value, Const):
        number: Value = Const.of(value.value, (), dtype)
    else:
        flat = lowering.view(value).reshaped(())
        assert flat is not None
        number = flat.expanded(shape)
    text = "{0} ? {2} + {1} : {2}" if accumulates else "{0} ? {1} : {2}"
    return lowering.pointwise(text, [wide, number, lowering.value(base)], shape, dtype)


def _nest(shape: Sequence[int]) -> tuple[str, Callable[[View], str]]:
    """Return loops over a shape, and how a view of that shape is addressed in them."""
    loops = "".join(
        f"for (long i{dim} = 0; i{dim} < {size}; i{dim}++) " for dim, size in enumerate(shape)
    )

    def at(view: View) -> str:
        parts = [f"i{dim} * {stride}" for dim, stride in enumerate(view.strides) if stride]
        return " + ".join(parts) or "0"

    return loops, at
