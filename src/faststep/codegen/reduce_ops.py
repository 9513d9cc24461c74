"""Lowering of reductions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from faststep.codegen.emit import literal
from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import (
    FLOATS,
    Op,
    argument,
    lowers,
    prefix_of,
)
from faststep.codegen.program import (
    C_TYPES,
    Const,
    UnsupportedError,
    Value,
    View,
    count,
    loops_over,
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
    """Add a search along a dimension; return the best values and their first indices."""
    view = lowering.view(given)
    if not view.shape:
        view = View(view.buffer, (1,), (0,), view.offset)
    dim %= len(view.shape)
    if not view.shape[dim]:
        raise UnsupportedError("it has no elements")
    rest = [d for d in range(len(view.shape)) if d != dim]
    values, places = (
        lowering.new_view([view.shape[d] for d in rest], t.dtype) for t in (best, index)
    )
    first, place = view.selected(dim, 0).address(rest), values.address(rest)
    ctype, sign = C_TYPES[view.dtype], ">" if name == "max" else "<"
    # Treat a NaN as both the largest and the smallest value.
    body = (
        f"{loops_over(view.shape, rest)} {{ {ctype} best = p0[{first}]; long at = 0; "
        f"for (long i{dim} = 1; i{dim} < {view.shape[dim]}; i{dim}++) "
        f"{{ const {ctype} one = p0[{view.address()}]; "
        f"if (one {sign} best || (one != one && best == best)) {{ best = one; at = i{dim}; }} }} "
        f"p1[{place}] = best; p2[{place}] = at; }}"
    )
    lowering.call(body, [view], [values, places])
    found = [one.reshaped(tuple(like.shape)) for one, like in ((values, best), (places, index))]
    return [one for one in found if one is not None]


def reduce_view(
    lowering: Lowering, view: View, dims: Sequence[int], name: str, result: torch.Tensor
) -> View:
    """Add a reduction over some dimensions; an empty list means all dimensions."""
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
    if found is None:  # the result keeps reduced dimensions, and has another layout
        found = View(total.buffer, tuple(result.shape), _spread(rank, kept, total.strides))
    return found


def _spread(rank: int, kept: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the kept dimensions, with stride 0 for the reduced dimensions."""
    found = [0] * rank
    for dim, stride in zip(kept, strides, strict=True):
        found[dim] = stride
    return tuple(found)


def _dims(args: Sequence[Any]) -> list[int]:
    """Return the dimensions from a reduction's arguments; an empty list means all."""
    dims = args[1] if len(args) > 1 and args[1] is not None else []
    return [dims] if isinstance(dims, int) else list(dims)


def _reduced(rank: int, dims: Sequence[int]) -> list[int]:
    return sorted({dim % rank for dim in dims}) if dims and rank else list(range(rank))


# Sum more numbers in double: a plain float32 sum loses digits that torch's blocked sum keeps.
_MOST_FLOATS = 4096


def _row_sums(view: View, total: View, kept: Sequence[int], reduced: Sequence[int]) -> str | None:
    """Return the body of a sum along contiguous rows; None if the layout has none."""
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
    """Return the body of a reduction; vectorize along a kept dimension if one is contiguous."""
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
        # Treat a NaN as both the largest and the smallest value.
        return f"{{{ctype} n_ = {new}; {old} = (n_ != n_ || n_ {sign} {old}) ? n_ : {old};}}"

    source, place = f"p0[{view.address()}]", f"p1[{total.address(kept)}]"
    by_stride = sorted(range(len(view.shape)), key=lambda dim: -view.strides[dim])
    outer = [dim for dim in by_stride if dim in reduced]
    finish = f"{place} /= {size};" if name == "mean" else ""
    inner = [d for d in kept if view.strides[d] == 1 and view.shape[d] > 1]
    if inner:
        along = inner[0]
        simd = f"#pragma omp simd\n{loops_over(view.shape, [along])}"
        others = [dim for dim in by_stride if dim in kept and dim != along]
        return (
            f"{loops_over(view.shape, others)} {{\n{simd} {place} = {first};\n"
            f"{loops_over(view.shape, outer)} {{\n{simd} {join(place, source)}\n}}\n"
            + (f"{simd} {finish}\n" if finish else "")
            + "}"
        )
    others = loops_over(view.shape, [dim for dim in by_stride if dim in kept])
    last = loops_over(view.shape, outer[-1:])
    if name in ("sum", "mean") and last:
        last = f"#pragma omp simd reduction(+:s_)\n{last}"
    return (
        f"{others} {{ {ctype} s_ = {first}; {loops_over(view.shape, outer[:-1])} "
        f"{{\n{last} {join('s_', source)}\n}} {place} = s_; {finish} }}"
    )


@lowers("var_mean", "var")
def _variance(lowering: Lowering, op: Op, args: list[Any]) -> Any:
    if op.name == "var_mean":
        var, mean = op.result
    else:
        var, keeps = op.result, bool(op.kwargs.get("keepdim"))
        mean = op.given(0).to("meta").mean(_dims(args) or None, keepdim=keeps)
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
    return [scaled, average] if op.name == "var_mean" else scaled


# Cycles per element of a transposed copy, and of a loop that reads across its own layout. A product
# takes one cycle per row, step of depth and vector. The ratios are those of x86 with AVX-512 or
# AVX2.
_PACK_COST = 0.3
_ACROSS_COST = 1.0
# If the rows of a right matrix lie on more pages than the TLB holds (2,048 of 4 kB), then read it
# by blocks of rows: reading a few columns of all rows at a time would touch every page each time.
# Threads then share the columns in parts that are still wide.
# Source: 16 x 2708 x 1433 on an EPYC, 8.8 ms; by 32, 64, 128 and 256 rows 6.6, 3.4, 4.3 and 5.7 ms.
_FAR, _LONG_ROW, _BLOCK, _WIDE_PART = 8_000_000, 1_024, 64, 512
# Operators between a gradient and the update that do not change its layout.
_KEEP_LAYOUT = {"add", "alias", "clone", "detach", "div", "mul", "neg", "sub"}


@lowers("mm", "bmm")
def _product_of(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    """Add a product of matrices or batches of matrices; transpose it if that is cheaper."""
    result = op.result
    if result.dtype not in FLOATS:
        raise UnsupportedError(f"not for {result.dtype}")
    zero = Const(0.0, op.shape, result.dtype)
    if any(isinstance(one, Const) and one.value == 0 for one in args):
        return zero
    one, other = map(lowering.view, args)
    if one.shape[-1] == 0:
        return zero
    wanted = _wanted(lowering, op.node)
    lanes = lowering.lanes * 4 // result.dtype.itemsize
    if wanted is None:  # put the batch innermost: the dimension that does not come from a weight
        wanted = (
            "rows" if _is_kept(lowering, one) else "columns" if _is_kept(lowering, other) else ""
        )
    straight = _cost(lowering, one, other, lanes, wanted in ("rows", ""))
    turned_one, turned_other = _turned(other), _turned(one)
    turned = _cost(lowering, turned_one, turned_other, lanes, wanted in ("columns", ""))
    if straight < turned:
        return _product(lowering, one, other)
    return _turned(_product(lowering, turned_one, turned_other))


def _is_kept(lowering: Lowering, view: View) -> bool:
    """Whether a matrix is a parameter or another argument that stays from step to step."""
    number = view.buffer.argument
    return number is not None and number < lowering.num_kept


def _turned(view: View) -> View:
    rank = len(view.shape)
    return view.permuted([*range(rank - 2), rank - 1, rank - 2])


def _cost(lowering: Lowering, left: View, right: View, lanes: int, is_wanted: bool) -> float:
    """Return the cycles of a product with vectors along the columns of the right matrix."""
    rows, depth = left.shape[-2:]
    columns = right.shape[-1]
    vectors = columns // lanes + (columns % lanes).bit_count()
    cost = rows * depth * (vectors + 0.25 * -(-vectors // 2))
    if not _has_rows(right) and (right, tuple(range(len(right.shape)))) not in lowering.packed:
        cost += _PACK_COST * depth * columns
    if not is_wanted:
        cost += _ACROSS_COST * rows * columns
    return cost


def _has_rows(view: View) -> bool:
    return view.strides[-1] == 1 or view.shape[-1] == 1


def _product(lowering: Lowering, left: View, right: View) -> View:
    if not _has_rows(right):
        right = lowering.arranged(right, tuple(range(len(right.shape))))
    *batch, rows, depth = left.shape
    columns = right.shape[-1]
    total = lowering.new_view((*batch, rows, columns), left.dtype)
    prefix = prefix_of(left.dtype)
    row_bytes = right.strides[-2] * right.dtype.itemsize
    is_far = row_bytes >= _LONG_ROW and row_bytes * depth > _FAR
    block = _BLOCK if is_far else depth

    def call(offsets: Sequence[str], part: str) -> str:
        return (
            f"{prefix}_product_part({rows}, {columns}, {depth}, p0{offsets[0]}, "
            f"{left.strides[-2]}, {left.strides[-1]}, p1{offsets[1]}, {right.strides[-2]}, "
            f"p2{offsets[2]}, {total.strides[-2]}, {block}, {part});"
        )

    if batch:
        size = batch[0]
        steps = (left.strides[0], right.strides[0], total.strides[0])
        most_parts = size
        body = f"for (long i = part * {size} / parts; i < (part + 1) * {size} / parts; i++) "
        body += call([f" + i * {step}" for step in steps], "0, 1")
    else:
        # About the number of tiles of the kernel.
        wide = _WIDE_PART if is_far else 2 * lowering.lanes
        most_parts = max(1, rows // 12) * max(1, columns // wide)
        body = call(("", "", ""), "part, parts")
    operations = count(total.shape) * depth
    lowering.call(body, [left, right], [total], operations=operations, most_parts=most_parts)
    return total


def _wanted(lowering: Lowering, node: fx.Node) -> str | None:
    """Return the layout of a product that suits the update; None if no update reads it."""
    if node.meta["val"].dim() != 2:
        return None
    todo = [(node, False)]
    seen: set[fx.Node] = set()
    while todo:
        one, is_turned = todo.pop()
        for user in one.users:
            if user in lowering.late_nodes:
                return "columns" if is_turned else "rows"
            if user in seen:
                continue
            seen.add(user)
            name = getattr(getattr(user.target, "overloadpacket", None), "__name__", "")
            value = user.meta.get("val")
            if name in ("permute", "t", "transpose"):
                todo.append((user, not is_turned))
            elif (
                name in _KEEP_LAYOUT
                and isinstance(value, torch.Tensor)
                and value.shape == one.meta["val"].shape
            ):
                todo.append((user, is_turned))
    return None
