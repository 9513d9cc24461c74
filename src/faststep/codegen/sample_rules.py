"""The operators that can be done for a part of the samples, and what their results are then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from faststep.codegen.operators import argument
from faststep.codegen.samples import (
    WITHIN_ELEMENTS,
    IndivisibleError,
    Partial,
    Samples,
    Split,
    States,
    Whole,
    args_of,
    name_of,
    rank_of,
    rule,
    shape_of,
    tensors_of,
)


@rule(*WITHIN_ELEMENTS)
def _pointwise(samples: Samples, node: fx.Node) -> States:
    rank = rank_of(node)
    operands = [
        (one, range(rank - rank_of(one), rank))
        for one in (*tensors_of(args_of(node)), *tensors_of(list(node.kwargs.values())))
    ]
    return samples.joined(node, operands, rank)


@rule("permute", "t", "transpose")
def _permute(samples: Samples, node: fx.Node) -> States:
    given, *args = args_of(node)
    rank = rank_of(node)
    dims = list(range(rank))
    if name_of(node) == "permute":
        dims = [dim % rank for dim in args[0]]
    elif rank > 1:
        one, other = (dim % rank for dim in args) if args else (0, 1)
        dims[one], dims[other] = dims[other], dims[one]
    return samples.joined(node, [(given, [dims.index(dim) for dim in range(rank)])], rank)


@rule("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")
def _view(samples: Samples, node: fx.Node) -> States:
    given = args_of(node)[0]
    assert isinstance(given, fx.Node)
    before, after = shape_of(given), shape_of(node)
    state = samples.state(given)
    if given.meta["val"].dtype != node.meta["val"].dtype:
        raise IndivisibleError(f"{node} takes bits for another type")
    if isinstance(state, Whole):
        kept = {
            (math.prod(before[:dim]), size)
            for dim, size in enumerate(before)
            if dim in state.constant
        }
        is_constant = all(size == 1 or dim in state.constant for dim, size in enumerate(before))
        return Whole(
            frozenset(
                dim
                for dim, size in enumerate(after)
                if is_constant or size == 1 or (math.prod(after[:dim]), size) in kept
            )
        )
    # Elements in the order of the shape: so many blocks, of each sample so many in a row.
    blocks = math.prod(before[: state.dim]) * state.outer
    row = state.inner * math.prod(before[state.dim + 1 :])
    for dim, size in enumerate(after):
        outside, inside = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if (
            blocks % outside == 0
            and row % inside == 0
            and blocks // outside * samples.num_samples * (row // inside) == size
        ):
            return Split(dim, blocks // outside, row // inside)
    raise IndivisibleError(f"{node} has samples along two dimensions")


@rule("expand")
def _expand(samples: Samples, node: fx.Node) -> States:
    given: Any = args_of(node)[0]
    rank = rank_of(node)
    return samples.joined(node, [(given, range(rank - rank_of(given), rank))], rank)


@rule("select")
def _select(samples: Samples, node: fx.Node) -> States:
    given, dim, _ = args_of(node)
    return _without(samples, node, given, [dim], keeps=False)


def _without(
    samples: Samples, node: fx.Node, given: Any, dims: Sequence[Any], *, keeps: bool
) -> Split | Whole:
    """Return the state of a result that has no longer some dimensions; or one of each."""
    rank = rank_of(given)
    gone = {dim % rank for dim in dims} if rank else set()
    places: list[int | None] = []
    for dim in range(rank):
        if dim in gone:
            places.append(None)
        else:
            places.append(dim if keeps else dim - sum(one < dim for one in gone))
    return samples.joined(node, [(given, places)], rank if keeps else rank - len(gone))


@rule("slice")
def _slice(samples: Samples, node: fx.Node) -> States:
    given: Any = args_of(node)[0]
    dim = argument(args_of(node), 1, 0) % rank_of(given)
    state = samples.state(given)
    if isinstance(state, Whole) or state.dim != dim:
        return state
    raise IndivisibleError(f"{node} takes some of the samples")


@rule("unbind")
def _unbind(samples: Samples, node: fx.Node) -> States:
    dim = argument(args_of(node), 1, 0)
    state = _without(samples, node, args_of(node)[0], [dim], keeps=False)
    return tuple(state for _ in node.meta["val"])


@rule("split", "split_with_sizes")
def _split(samples: Samples, node: fx.Node) -> States:
    dim = argument(args_of(node), 2, 0)
    state = _without(samples, node, args_of(node)[0], [dim], keeps=True)
    return tuple(state for _ in node.meta["val"])


@rule("cat")
def _cat(samples: Samples, node: fx.Node) -> States:
    rank = rank_of(node)
    dim = argument(args_of(node), 1, 0)
    operands = tensors_of(args_of(node)[0])
    if any(rank_of(one) != rank for one in operands):
        raise IndivisibleError(f"{node} joins an empty tensor")
    states = [samples.state(one) for one in operands]
    split = next((one for one in states if isinstance(one, Split)), None)
    if split is not None and split.dim == dim % rank:
        return _stacked(samples, node, operands, split)
    return _put_together(samples, node, dim, [(one, range(rank)) for one in operands])


def _stacked(samples: Samples, node: fx.Node, operands: Sequence[fx.Node], split: Split) -> Split:
    """Return the state of what has samples of several tensors one after the other."""
    block = samples.num_samples * split.inner
    for operand in operands:
        state = samples.state(operand)
        if isinstance(state, Whole) and shape_of(operand)[split.dim] % block == 0:
            samples.narrow(node, operand, split.dim, state)
        elif state != Split(split.dim, shape_of(operand)[split.dim] // block, split.inner):
            raise IndivisibleError(f"{node} has samples along two dimensions")
    return Split(split.dim, shape_of(node)[split.dim] // block, split.inner)


@rule("select_scatter")
def _select_scatter(samples: Samples, node: fx.Node) -> States:
    base, part, dim = args_of(node)[:3]
    rank = rank_of(node)
    kept = [one for one in range(rank) if one != dim % rank]
    return _put_together(samples, node, dim, [(base, range(rank)), (part, kept)])


@rule("slice_scatter")
def _slice_scatter(samples: Samples, node: fx.Node) -> States:
    dim = argument(args_of(node), 2, 0)
    operands = [(one, range(rank_of(node))) for one in args_of(node)[:2]]
    return _put_together(samples, node, dim, operands)


@rule("gather", "scatter", "scatter_add")
def _gather(samples: Samples, node: fx.Node) -> States:
    operands = [(one, range(rank_of(node))) for one in tensors_of(args_of(node))]
    return _put_together(samples, node, args_of(node)[1], operands)


def _put_together(
    samples: Samples, node: fx.Node, dim: Any, operands: Sequence[tuple[Any, Sequence[int]]]
) -> Split | Whole:
    """Return the state of what has parts of operands along a dimension, or chosen elements."""
    rank = rank_of(node)
    dim = dim % rank if rank else 0
    state = samples.joined(
        node,
        [(one, [None if place == dim else place for place in dims]) for one, dims in operands],
        rank,
    )
    return Whole(state.constant - {dim}) if isinstance(state, Whole) else state


@rule("sum", "mean", "amax", "amin", "prod", "any")
def _reduce(samples: Samples, node: fx.Node) -> States:
    given: Any = args_of(node)[0]
    dims: Any = argument(args_of(node), 1)
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank_of(given)))
    state = samples.state(given)
    name = name_of(node)
    if isinstance(state, Split) and state.dim in {dim % rank_of(given) for dim in dims}:
        if name == "mean":
            samples.means.add(node)
        elif name != "sum":
            raise IndivisibleError(f"{node} looks at several samples")
        return Partial()
    return _without(samples, node, given, dims, keeps=rank_of(node) == rank_of(given))


@rule("constant_pad_nd", "flip", "glu")
def _within(samples: Samples, node: fx.Node) -> States:
    """Return the state of what changes along some dimensions, of which samples are none."""
    given: Any = args_of(node)[0]
    dims: Any = argument(args_of(node), 1, -1)
    if name_of(node) == "constant_pad_nd":
        dims = [-1 - number // 2 for number, size in enumerate(dims) if size]
    dims = [dims] if isinstance(dims, int) else list(dims)
    state = _without(samples, node, given, dims, keeps=True)
    return Whole() if isinstance(state, Whole) else state


@rule("var_mean", "var", "std", "max", "min", "argmax", "argmin", "cumsum", "cumprod")
def _along(samples: Samples, node: fx.Node) -> States:
    given: Any = args_of(node)[0]
    results = node.meta["val"]
    dims: Any = argument(args_of(node), 1)
    if isinstance(dims, bool) or not isinstance(dims, int | list | tuple):
        raise IndivisibleError(f"{node} looks at several samples")
    first = results[0] if isinstance(results, list | tuple) else results
    keeps = first.dim() == rank_of(given)
    dims = [dims] if isinstance(dims, int) else list(dims)
    state = _without(samples, node, given, dims, keeps=keeps)
    if isinstance(state, Whole):
        state = Whole()
    return tuple(state for _ in results) if isinstance(results, list | tuple) else state


@rule("mm", "bmm")
def _product(samples: Samples, node: fx.Node) -> States:
    return _product_of(samples, node, *args_of(node)[:2])


def _product_of(samples: Samples, node: fx.Node, left: Any, right: Any) -> States:
    rank = rank_of(node)
    batch, row, column = range(rank - 2), rank - 2, rank - 1
    along = [(left, column), (right, row)]
    splits = [(state, dim) for one, dim in along if isinstance(state := samples.state(one), Split)]
    if any(state.dim == dim for state, dim in splits):
        forms = {(state.outer, state.inner) for state, _ in splits}
        for operand, dim in along:
            state = samples.state(operand)
            if isinstance(state, Whole):
                samples.narrow(node, operand, dim, state)
            elif state.dim != dim or len(forms) != 1:
                raise IndivisibleError(f"{node} looks at several samples")
        return Partial()
    return samples.joined(
        node, [(left, [*batch, row, None]), (right, [*batch, None, column])], rank
    )


@rule("addmm", "baddbmm")
def _addmm(samples: Samples, node: fx.Node) -> States:
    rank = rank_of(node)
    added, left, right = args_of(node)[:3]
    if isinstance(_product_of(samples, node, left, right), Partial):
        raise IndivisibleError(f"{node} adds to a sum over samples")
    batch, row, column = range(rank - 2), rank - 2, rank - 1
    return samples.joined(
        node,
        [
            (added, range(rank - rank_of(added), rank)),
            (left, [*batch, row, None]),
            (right, [*batch, None, column]),
        ],
        rank,
    )


@rule("convolution")
def _convolution(samples: Samples, node: fx.Node) -> States:
    given, *others = tensors_of(args_of(node))
    if samples.state(given) != Split(0) or not _are_whole(samples, others):
        raise IndivisibleError(f"{node} has samples along another dimension")
    return Split(0)


def _are_whole(samples: Samples, nodes: Sequence[fx.Node]) -> bool:
    return all(isinstance(samples.state(one), Whole) for one in nodes)


@rule("convolution_backward")
def _convolution_backward(samples: Samples, node: fx.Node) -> States:
    grad, given, weight = tensors_of(args_of(node))
    is_split = samples.state(grad) == samples.state(given) == Split(0)
    if not is_split or not _are_whole(samples, [weight]):
        raise IndivisibleError(f"{node} has samples along another dimension")
    return Split(0), Partial(), Partial()


@rule(
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)
def _pool(samples: Samples, node: fx.Node) -> States:
    operands = tensors_of(args_of(node))
    if any(samples.state(one) != Split(0) or rank_of(one) != 4 for one in operands):
        raise IndivisibleError(f"{node} has samples along another dimension")
    results = node.meta["val"]
    return tuple(Split(0) for _ in results) if isinstance(results, list | tuple) else Split(0)


@rule("embedding")
def _embedding(samples: Samples, node: fx.Node) -> States:
    table, index = args_of(node)[:2]
    rank = rank_of(node)
    return samples.joined(node, [(table, [None, rank - 1]), (index, range(rank - 1))], rank)
