"""Reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from faststep.codegen.emit import literal
from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import (
    FLOATS,
    Op,
    argument,
    cast_operands,
    lowers,
    prefix_of,
)
from faststep.codegen.program import (
    C_TYPES,
    UnsupportedError,
    Value,
    View,
    count,
    merge_dims,
)


@lowers("sum", "mean", "amax", "amin", "prod", "any")
def _reduce(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    return reduce_view(lowering, lowering.view(args[0]), _dims(args), op.name, op.result)


@lowers("max", "min")
def _max(lowering: Lowering, op: Op, args: list[Any]) -> Any:
    if len(args) == 1:
        view = lowering.view(args[0])
        return reduce_view(lowering, view, [], f"a{op.name}", op.result)
    if not isinstance(args[1], int):
        raise UnsupportedError("only a dimension is covered")
    return _best(lowering, args[0], args[1], op.name, *op.result)


@lowers("argmax", "argmin")
def _argmax(lowering: Lowering, op: Op, args: list[Any]) -> View:
    view, name = lowering.view(args[0]), op.name.removeprefix("arg")
    dim = argument(args, 1)
    if dim is None:
        view, dim = lowering.reshaped(view, (count(view.shape),)), 0
    best = torch.empty(op.shape, dtype=view.dtype, device="meta")
    return _best(lowering, view, dim, name, best, op.result)[1]


def _best(
    lowering: Lowering, given: Any, dim: int, name: str, best: torch.Tensor, index: torch.Tensor
) -> list[View]:
    """Add a search along a dimension; return what is best and, of equals, where the first is."""
    view = _with_dim(lowering.view(given))
    dim %= len(view.shape)
    if not view.shape[dim]:
        raise UnsupportedError("it has no elements")
    kept = [size for d, size in enumerate(view.shape) if d != dim]
    values, places = (lowering.new_view(kept, one.dtype) for one in (best, index))
    loops, first, at, (value, place) = _along(view, dim, [values, places])
    ctype, sign = C_TYPES[view.dtype], ">" if name == "max" else "<"
    # A NaN is the largest and the smallest there is.
    body = (
        f"{loops} {{ {ctype} best = p0[{first}]; long at = 0; "
        f"for (long k = 1; k < {view.shape[dim]}; k++) {{ const {ctype} one = p0[{at}]; "
        f"if (one {sign} best || (one != one && best == best)) {{ best = one; at = k; }} }} "
        f"p1[{value}] = best; p2[{place}] = at; }}"
    )
    lowering.call(body, [view], [values, places])
    found = [one.reshaped(tuple(like.shape)) for one, like in ((values, best), (places, index))]
    return [one for one in found if one is not None]


def _with_dim(view: View) -> View:
    """Return a view with a dimension, of which a single number has none."""
    return view if view.shape else View(view.buffer, (1,), (0,), view.offset)


def _along(view: View, dim: int, others: Sequence[View]) -> tuple[str, str, str, list[str]]:
    """Return loops over all dimensions but one, and addresses in them.

    Returns:
        The loops; the address of a view's first element along the dimension, and of number ``k``;
        and those of other views, which have not that dimension.
    """
    rest = [d for d in range(len(view.shape)) if d != dim]
    loops = "".join(f"for (long i{d} = 0; i{d} < {view.shape[d]}; i{d}++) " for d in rest)
    first = " + ".join(["0", *(f"i{d} * {view.strides[d]}" for d in rest)])
    places = [
        " + ".join(["0", *(f"i{d} * {s}" for d, s in zip(rest, one.strides, strict=True))])
        for one in others
    ]
    return loops, first, f"{first} + k * {view.strides[dim]}", places


@lowers("cumsum", "cumprod")
def _cumulate(lowering: Lowering, op: Op, args: list[Any]) -> View:
    dtype, sign = op.result.dtype, "+" if op.name == "cumsum" else "*"
    view = _with_dim(lowering.view(args[0]))
    dim = args[1] % len(view.shape)
    total = lowering.new_view(view.shape, dtype, view.order())
    loops, _, at, _ = _along(view, dim, [])
    _, _, to, _ = _along(total, dim, [])
    # As torch does: sums of floats are double.
    ctype = "double" if dtype in FLOATS else f"u{C_TYPES[dtype]}"
    body = (
        f"{loops} {{ {ctype} sum = {0 if sign == '+' else 1}; "
        f"for (long k = 0; k < {view.shape[dim]}; k++) "
        f"{{ sum {sign}= p0[{at}]; p1[{to}] = sum; }} }}"
    )
    if dtype not in (*FLOATS, torch.int64, torch.int32):
        raise UnsupportedError(f"not for {dtype}")
    lowering.call(body, [view], [total])
    return View(total.buffer, op.shape, total.strides[: len(op.shape)])


def reduce_view(
    lowering: Lowering, view: View, dims: Sequence[int], name: str, result: torch.Tensor
) -> View:
    """Add a reduction over some dimensions, or over all of them where none is named."""
    rank = len(view.shape)
    reduced = _reduced(rank, dims)
    dtype = result.dtype
    size = count([view.shape[dim] for dim in reduced])
    if name == "mean" and dtype not in FLOATS:
        raise UnsupportedError(f"not for {dtype}")
    if not size and name in ("mean", "amax", "amin"):
        raise UnsupportedError("it has no elements")
    kept = [dim for dim in range(rank) if dim not in reduced]
    order = sorted(range(len(kept)), key=lambda number: -view.strides[kept[number]])
    total = lowering.new_view([view.shape[dim] for dim in kept], dtype, order)
    adds = name in ("sum", "mean")
    body = _row_sums(view, total, kept, reduced) if adds else None
    if body is None and adds and dtype == torch.float32 and size > _MOST_FLOATS:
        wide = reduce_view(
            lowering, view, dims, name, torch.empty_like(result, dtype=torch.float64, device="meta")
        )
        narrow = lowering.pointwise("{0}", [wide], result.shape, dtype)
        return lowering.view(narrow)
    if body is None:
        lowering.call(_reduction(view, total, kept, reduced, name, size), [view], [total])
    else:
        lowering.call(body, [view], [total])
        if name == "mean":
            mean = lowering.pointwise(f"{{0}} / {size}", [total], total.shape, dtype)
            total = lowering.view(mean)
    found = total.reshaped(tuple(result.shape))
    if found is None:  # kept dimensions of size 1, in a layout of its own
        found = View(total.buffer, tuple(result.shape), _spread(rank, kept, total.strides))
    return found


def _spread(rank: int, kept: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of what a reduction keeps, with those of the reduced dimensions: 0."""
    found = [0] * rank
    for dim, stride in zip(kept, strides, strict=True):
        found[dim] = stride
    return tuple(found)


def _dims(args: Sequence[Any]) -> list[int]:
    """Return the dimensions that a reduction is given: none for all of them."""
    dims = args[1] if len(args) > 1 and args[1] is not None else []
    return [dims] if isinstance(dims, int) else list(dims)


def _reduced(rank: int, dims: Sequence[int]) -> list[int]:
    return sorted({dim % rank for dim in dims}) if dims and rank else list(range(rank))


# A sum of more in float32 would have lost digits that torch's, by parts, still has.
_MOST_FLOATS = 4096


def _row_sums(view: View, total: View, kept: Sequence[int], reduced: Sequence[int]) -> str | None:
    """Return the body of sums along contiguous rows; None where they are not that."""
    if view.dtype != total.dtype or view.dtype not in FLOATS or 0 in view.shape:
        return None
    wide = _spread(len(view.shape), kept, total.strides)

    def merged(dims: Sequence[int]) -> list[tuple[int, list[int]]]:
        order = sorted(dims, key=lambda dim: -view.strides[dim])
        return merge_dims(view.shape, order, [view.strides, wide], set())

    rows, columns = merged(kept), merged(reduced)
    if len(rows) > 1 or len(columns) != 1 or view.strides[columns[0][1][-1]] != 1:
        return None
    num_rows, (*_, row) = rows[0] if rows else (1, [0])
    strides = (view.strides[row], wide[row]) if rows else (0, 1)
    prefix = prefix_of(view.dtype)
    return f"{prefix}_row_sums({num_rows}, {columns[0][0]}, p0, {strides[0]}, p1, {strides[1]});"


def _reduction(
    view: View, total: View, kept: Sequence[int], reduced: Sequence[int], name: str, size: int
) -> str:
    """Return the body of a reduction: along a kept dimension where one is contiguous."""
    ctype = C_TYPES[total.dtype]
    first = {"prod": "1"}.get(name, "0")
    if name in ("amax", "amin"):
        is_largest = name == "amax"
        if total.dtype in FLOATS:
            first = "-INFINITY" if is_largest else "INFINITY"
        elif total.dtype == torch.bool:
            first = "0" if is_largest else "1"
        else:
            info = torch.iinfo(total.dtype)
            first = literal(info.min if is_largest else info.max, total.dtype)
    sign = ">" if name == "amax" else "<"

    def join(old: str, new: str) -> str:
        if name in ("sum", "mean"):
            return f"{old} += {new};"
        if name == "prod":
            return f"{old} *= {new};"
        if name == "any":
            return f"{old} |= {new} != 0;"
        # A NaN is the largest and the smallest there is.
        return f"{{{ctype} n_ = {new}; {old} = (n_ != n_ || n_ {sign} {old}) ? n_ : {old};}}"

    def loop(dim: int) -> str:
        return f"for (long i{dim} = 0; i{dim} < {view.shape[dim]}; i{dim}++) "

    source = (
        "p0[" + " + ".join(["0", *(f"i{d} * {s}" for d, s in enumerate(view.strides) if s)]) + "]"
    )
    place = (
        "p1["
        + " + ".join(["0", *(f"i{d} * {s}" for d, s in zip(kept, total.strides, strict=True) if s)])
        + "]"
    )
    by_stride = sorted(range(len(view.shape)), key=lambda dim: -view.strides[dim])
    outer = [dim for dim in by_stride if dim in reduced]
    finish = f"{place} /= {size};" if name == "mean" else ""
    inner = [d for d in kept if view.strides[d] == 1 and view.shape[d] > 1]
    if inner:
        along = inner[0]
        simd = f"#pragma omp simd\n{loop(along)}"
        others = "".join(loop(dim) for dim in by_stride if dim in kept and dim != along)
        nest = "".join(loop(dim) for dim in outer)
        return (
            f"{others} {{\n{simd} {place} = {first};\n{nest} {{\n{simd} {join(place, source)}\n}}\n"
            + (f"{simd} {finish}\n" if finish else "")
            + "}"
        )
    others = "".join(loop(dim) for dim in by_stride if dim in kept)
    nest = "".join(loop(dim) for dim in outer[:-1])
    last = loop(outer[-1]) if outer else ""
    clause = (
        f"#pragma omp simd reduction(+:s_)\n{last}" if name in ("sum", "mean") and last else last
    )
    return (
        f"{others} {{ {ctype} s_ = {first}; {nest} {{\n{clause} {join('s_', source)}\n}} "
        f"{place} = s_; {finish} }}"
    )


@lowers("var_mean")
def _var_mean(lowering: Lowering, op: Op, args: list[Any]) -> list[Value]:
    return _variance(lowering, op, args, *op.result)


@lowers("var", "std")
def _var(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    var, dtype = op.result, op.result.dtype
    dims = _dims(args)
    mean = op.given(0).to("meta").mean(dims or None, keepdim=bool(op.kwargs.get("keepdim")))
    found = _variance(lowering, op, args, var, mean)[0]
    if op.name == "var":
        return found
    text = cast_operands("{f}sqrt({0})", [found], dtype)
    return lowering.pointwise(text, [found], var.shape, dtype)


def _variance(
    lowering: Lowering, op: Op, args: list[Any], var: torch.Tensor, mean: torch.Tensor
) -> list[Value]:
    view = lowering.view(args[0])
    dims = _dims(args)
    correction = op.kwargs.get("correction")
    correction = 1 if correction is None else correction
    rank = len(view.shape)
    reduced = _reduced(rank, dims)
    size = count([view.shape[dim] for dim in reduced])
    if var.dtype not in FLOATS or size <= correction:
        raise UnsupportedError("it has too few elements")
    average = reduce_view(lowering, view, dims, "mean", mean)
    kept_shape = tuple(1 if dim in reduced else view.shape[dim] for dim in range(rank))
    kept = [dim for dim in range(rank) if dim not in reduced]
    dense = (
        average.strides if len(average.shape) == len(kept) else [average.strides[d] for d in kept]
    )
    strides = _spread(rank, kept, dense)
    wide = View(average.buffer, kept_shape, strides, average.offset)
    squares = lowering.pointwise(
        "({0} - {1}) * ({0} - {1})", [view, wide.expanded(view.shape)], view.shape, var.dtype
    )
    total = reduce_view(lowering, lowering.view(squares), dims, "sum", var)
    scaled = lowering.pointwise(f"{{0}} / {size - correction}", [total], var.shape, var.dtype)
    return [scaled, average]
