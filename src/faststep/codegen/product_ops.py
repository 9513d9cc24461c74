"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import FLOATS, Op, lowers, prefix_of
from faststep.codegen.program import (
    Const,
    UnsupportedError,
    Value,
    View,
    count,
)
from faststep.codegen.reduce_ops import reduce_view

# Cycles, of which a product takes one per row, step of depth and vector: of a transposed copy, and
# of a loop that reads across its own layout, per element. Ratios of an x86 with AVX-512 or AVX2.
_PACK_COST = 0.3
_ACROSS_COST = 1.0
# A right matrix whose rows lie on more pages than a processor keeps addresses of (2,048 of 4 kB)
# is read by blocks of rows: a few columns of all rows at a time would touch every page each time.
# Threads share the columns then, in parts that are still wide.
# Source: 16 x 2708 x 1433 on an EPYC, 8.8 ms; by 32, 64, 128 and 256 rows 6.6, 3.4, 4.3 and 5.7.
_FAR, _LONG_ROW, _BLOCK, _WIDE_PART = 8_000_000, 1_024, 64, 512
# What a gradient passes on its way to the update without a change of its layout.
_KEEP_LAYOUT = {"add", "alias", "clone", "detach", "div", "mul", "neg", "sub"}


@lowers("mm")
def _mm(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    return product(lowering, op, args[0], args[1])


@lowers("bmm")
def _bmm(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    return product(lowering, op, args[0], args[1])


@lowers("addmm", "baddbmm")
def _addmm(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    alpha, beta = op.kwargs.get("alpha", 1), op.kwargs.get("beta", 1)
    result = op.result
    value = product(lowering, op, args[1], args[2])
    if alpha != 1 or beta != 1:
        inputs = [value, lowering.value(alpha, result.dtype)]
        text = "{0} * {1}"
        if beta != 0:  # what is multiplied by 0 is not read: it may be NaN
            inputs += [lowering.value(args[0]), lowering.value(beta, result.dtype)]
            text += " + {2} * {3}"
        return lowering.pointwise(text, inputs, result.shape, result.dtype)
    return lowering.pointwise(
        "{0} + {1}", [value, lowering.value(args[0])], result.shape, result.dtype
    )


@lowers("dot", "mv")
def _mv(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    left, right = (lowering.view(one) for one in args[:2])
    summed = lowering.pointwise(
        "{0} * {1}", [left, right.expanded(left.shape)], left.shape, result.dtype
    )
    return reduce_view(lowering, lowering.view(summed), [-1], "sum", result)


def product(lowering: Lowering, op: Op, left: Any, right: Any) -> Value:
    """Add a product of matrices, or of batches of them; transposed where that is cheaper."""
    result = op.result
    if result.dtype not in FLOATS:
        raise UnsupportedError(f"not for {result.dtype}")
    for one in (left, right):
        if isinstance(one, Const) and one.value == 0:
            return Const(0.0, tuple(result.shape), result.dtype)
    one, other = lowering.view(left), lowering.view(right)
    if one.shape[-1] == 0:
        return Const(0.0, tuple(result.shape), result.dtype)
    wanted = _wanted(lowering, op.node)
    lanes = lowering.lanes * 4 // result.dtype.itemsize
    if wanted is None:  # the batch innermost, which a weight has not
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
    """Return whether a matrix is a parameter, or another tensor that stays from step to step."""
    number = view.buffer.argument
    return number is not None and number < lowering.num_kept


def _turned(view: View) -> View:
    rank = len(view.shape)
    return view.permuted([*range(rank - 2), rank - 1, rank - 2])


def _cost(lowering: Lowering, left: View, right: View, lanes: int, is_wanted: bool) -> float:
    """Return the cycles of a product whose vectors run along the right one's columns."""
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
        # Of tiles of the kernel, about.
        wide = _WIDE_PART if is_far else 2 * lowering.lanes
        most_parts = max(1, rows // 12) * max(1, columns // wide)
        body = call(("", "", ""), "part, parts")
    operations = count(total.shape) * depth
    lowering.call(body, [left, right], [total], operations=operations, most_parts=most_parts)
    return total


def _wanted(lowering: Lowering, node: fx.Node) -> str | None:
    """Return the layout that an update wants of a product; None where no update reads it."""
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
