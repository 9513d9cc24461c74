"""Rules for dividing the operators of a step by samples.

A tensor is split along one dimension, or whole: the same for every part. A product or sum over all
samples is partial: the values of all parts add up to it. A nonlinear result of a partial tensor is
late: known only after all parts.

The rules prove that the parts together compute the whole step. The result of an operator without a
rule, or one that combines several samples, is late. If an operator with samples needs a late
result, then the step is not divided.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from faststep.codegen.operators import POINTWISE, argument


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor divided by samples along one dimension.

    Args:
        dim: The dimension of the samples.
        outer: Size of the outer index in this dimension, such as the steps of a sequence.
        inner: Size of the inner index in this dimension: consecutive elements of one sample.
    """

    dim: int
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that every part reads in full.

    Args:
        constant: Dimensions along which all of its elements are equal.
    """

    constant: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Partial:
    """A tensor that is the sum of one tensor from each part."""


@dataclass(frozen=True, slots=True)
class Late:
    """A tensor that is known only after all parts."""


State = Split | Whole | Partial | Late
# The state of a result, or one state for each of several results.
States = State | tuple[State, ...]
# Operands, each with the result's dimension for each of its own; None if the result lacks it.
Operands = Sequence[tuple[Any, Sequence[int | None]]]


class IndivisibleError(Exception):
    """A step cannot be divided by its samples."""


class Samples:
    """The states of a graph's nodes.

    Args:
        num_samples: Number of samples in the batch.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.states: dict[fx.Node, States] = {}
        # Dimensions along which a part slices whole, constant operands, by node and operand.
        self.narrowed: dict[tuple[fx.Node, fx.Node], int] = {}
        # Means over samples: a part sums, and divides by the number of all samples.
        self.means: set[fx.Node] = set()
        # Sums that depend on little but the batch, such as a count of targets; each part computes
        # them over the whole batch.
        self.early: set[fx.Node] = set()

    def find(self, node: fx.Node) -> States:
        """Return the state of a node; needs the states of its operands.

        A result that cannot be divided is late.
        """
        if node.target is operator.getitem:
            operand, number = args_of(node)
            given = self.states[operand]
            return given[number] if isinstance(given, tuple) else given
        if filled_with(node) is not None:
            likes = [one for one in node.all_input_nodes if shape_of(one) == shape_of(node)]
            state = self.states[likes[0]] if likes else None
            return state if isinstance(state, Split) else Whole(frozenset(range(rank_of(node))))
        flat: list[State] = []
        for one in node.all_input_nodes:
            state = self.states[one]
            flat += state if isinstance(state, tuple) else (state,)
        name = name_of(node)
        is_split = any(isinstance(one, Split) for one in flat)
        late = [n for n in node.all_input_nodes if isinstance(self.states[n], Partial | Late)]
        if late and is_split:
            if not all(map(self._is_early, late)):
                return Late()
            self.early.update(late)
        elif late:
            is_sum = all(isinstance(one, Partial) for one in flat) and _is_linear(node, name)
            return Partial() if is_sum else Late()
        rule = RULES.get(name)
        if rule is None:
            return Late() if is_split else Whole()
        try:
            return rule(self, node)
        except IndivisibleError:
            return Late()

    def _is_early(self, node: fx.Node) -> bool:
        """Whether a sum depends on little but the batch, so that each part can compute it."""
        closure = closure_of(node, _MOST_EARLY)
        sizes = (math.prod(getattr(one.meta.get("val"), "shape", ())) for one in closure)
        return (
            len(closure) <= _MOST_EARLY
            and all(name_of(one) in _EARLY for one in closure)
            and sum(sizes) <= _MOST_EARLY * self.num_samples
        )

    def state(self, node: Any) -> Split | Whole:
        """Return the state of an operand that is split or whole; early sums are whole.

        Raises:
            IndivisibleError: The operand has another state.
        """
        found = self.states[node]
        if node in self.early:
            return Whole()
        if not isinstance(found, Split | Whole):
            raise IndivisibleError(f"{node} is several tensors")
        return found

    def joined(self, node: fx.Node, operands: Operands, rank: int | None = None) -> Split | Whole:
        """Return the state of a result whose dimensions come from its operands.

        Args:
            node: The operator.
            operands: Its operands, with the result's dimensions of each.
            rank: Number of the result's dimensions, if the operator has several results.

        Raises:
            IndivisibleError: The operator combines samples, or has them along two dimensions.
        """
        found: Split | None = None
        for operand, dims in operands:
            state = self.state(operand)
            if isinstance(state, Split):
                dim = dims[state.dim]
                if dim is None:
                    raise IndivisibleError(f"{node} looks at several samples")
                moved = Split(dim, state.outer, state.inner)
                if found not in (None, moved):
                    raise IndivisibleError(f"{node} has samples along two dimensions")
                found = moved
        constant = set(range(rank_of(node) if rank is None else rank))
        for operand, dims in operands:
            state = self.state(operand)
            for own, dim in enumerate(dims):
                if isinstance(state, Split) or shape_of(operand)[own] == 1:
                    continue
                if found is None and own not in state.constant:
                    constant -= {dim}
                elif found is not None and dim == found.dim:
                    self.narrow(node, operand, own, state)
        return Whole(frozenset(constant)) if found is None else found

    def narrow(self, node: fx.Node, operand: fx.Node, dim: int, state: Whole) -> None:
        """Let a part slice a whole operand that is constant along a dimension.

        Raises:
            IndivisibleError: The operand is not constant along the dimension.
        """
        if dim not in state.constant or self.narrowed.get((node, operand), dim) != dim:
            raise IndivisibleError(f"{operand} is another one for each sample of {node}")
        self.narrowed[node, operand] = dim


Rule = Callable[[Samples, fx.Node], States]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of operators."""

    def register(one: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, one))
        return one

    return register


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's only result."""
    return tuple(node.meta["val"].shape)


def rank_of(node: fx.Node) -> int:
    """Return the number of dimensions of a node's only result."""
    return node.meta["val"].dim()


def name_of(node: fx.Node) -> str:
    """Return the ATen name of a node's operator; an empty string if it has none."""
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def args_of(node: fx.Node) -> list[Any]:
    """Return an operator's arguments."""
    return list(node.args)


def tensors_of(given: Any) -> list[fx.Node]:
    """Return the nodes in nested arguments."""
    if isinstance(given, fx.Node):
        return [given]
    if isinstance(given, list | tuple):
        return [one for part in given for one in tensors_of(part)]
    return []


def closure_of(node: fx.Node, most: float = math.inf) -> set[fx.Node]:
    """Return a node and all its ancestors; stop the search at more than `most` nodes."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo and len(found) <= most:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += one.all_input_nodes if filled_with(one) is None else []
    return found


def filled_with(node: fx.Node) -> float | None:
    """Return the number that a node fills a tensor with; None if it does not."""
    name = name_of(node)
    if name.startswith("empty"):  # it may have any values
        return 0
    value = node.args[-1] if name in ("full", "full_like", "scalar_tensor") else None
    return value if isinstance(value, bool | int | float) else None


# Limits of an early sum, which each part computes: its operators, and their numbers per sample.
_MOST_EARLY = 64
_LOOKS = ("permute", "t", "transpose", "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")
_WITHIN_ELEMENTS = (
    *POINTWISE,
    *(
        "abs",
        "alias",
        "bitwise_not",
        "clamp",
        "clone",
        "contiguous",
        "convert_element_type",
        "copy",
    ),
    *("detach", "expand", "fmod", "lift_fresh_copy", "pow", "remainder", "signbit", "_to_copy"),
    "where",
)
_EARLY = {
    *("", "sum", "mean", "amax", "amin", "var", "select", "slice", "full", "full_like"),
    *("scalar_tensor", *_WITHIN_ELEMENTS, *_LOOKS),
}


def _is_linear(node: fx.Node, name: str) -> bool:
    """Whether an operator is linear: the sum of its results is its result for the sum."""
    if name in ("alias", "clone", "detach", "neg", *_LOOKS):
        return True
    tensors = tensors_of(node.args[:2])
    if name in ("add", "sub"):  # not with a number, which each part would add
        return len(tensors) == 2
    is_scaled = name == "mul" or (name == "div" and not node.kwargs.get("rounding_mode"))
    return is_scaled and tensors == [node.args[0]]


@rule(*_WITHIN_ELEMENTS)
def _pointwise(samples: Samples, node: fx.Node) -> States:
    rank = rank_of(node)
    operands = tensors_of([*node.args, *node.kwargs.values()])
    return samples.joined(node, [(one, range(rank - rank_of(one), rank)) for one in operands])


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
    return samples.joined(node, [(given, [dims.index(dim) for dim in range(rank)])])


@rule("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")
def _view(samples: Samples, node: fx.Node) -> States:
    given = args_of(node)[0]
    before, after = shape_of(given), shape_of(node)
    state = samples.state(given)
    if given.meta["val"].dtype != node.meta["val"].dtype:
        raise IndivisibleError(f"{node} takes bits for another type")
    if isinstance(state, Whole):
        kept = {(math.prod(before[:dim]), before[dim]) for dim in state.constant}
        is_constant = all(size == 1 or dim in state.constant for dim, size in enumerate(before))
        return Whole(
            frozenset(
                dim
                for dim, size in enumerate(after)
                if is_constant or size == 1 or (math.prod(after[:dim]), size) in kept
            )
        )
    # In the order of the elements: number of blocks, and consecutive elements of one sample.
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


@rule("slice")
def _slice(samples: Samples, node: fx.Node) -> States:
    given: Any = args_of(node)[0]
    dim = argument(args_of(node), 1, 0) % rank_of(given)
    state = samples.state(given)
    if isinstance(state, Whole) or state.dim != dim:
        return state
    raise IndivisibleError(f"{node} takes some of the samples")


def _without(samples: Samples, node: fx.Node, dims: Iterable[int], *, keeps: bool) -> Split | Whole:
    """Return the state of a result without some dimensions; with ``keeps``, they remain."""
    given: Any = args_of(node)[0]
    rank = rank_of(given)
    gone = {dim % rank for dim in dims} if rank else set()
    places: list[int | None] = [
        None if dim in gone else dim if keeps else dim - sum(one < dim for one in gone)
        for dim in range(rank)
    ]
    return samples.joined(node, [(given, places)], rank if keeps else rank - len(gone))


@rule("select", "unbind", "split", "split_with_sizes")
def _parts(samples: Samples, node: fx.Node) -> States:
    keeps = name_of(node).startswith("split")
    dim = argument(args_of(node), 2 if keeps else 1, 0)
    state = _without(samples, node, [dim], keeps=keeps)
    return state if name_of(node) == "select" else tuple(state for _ in node.meta["val"])


@rule("cat")
def _cat(samples: Samples, node: fx.Node) -> States:
    rank = rank_of(node)
    dim = argument(args_of(node), 1, 0) % rank
    operands = tensors_of(args_of(node)[0])
    if any(rank_of(one) != rank for one in operands):
        raise IndivisibleError(f"{node} joins an empty tensor")
    states = [samples.state(one) for one in operands]
    split = next((one for one in states if isinstance(one, Split)), None)
    if split is None or split.dim != dim:
        return _put_together(samples, node, dim, [(one, range(rank)) for one in operands])
    # Concatenate the samples of several tensors.
    block = samples.num_samples * split.inner
    for operand, state in zip(operands, states, strict=True):
        size = shape_of(operand)[dim]
        if isinstance(state, Whole) and size % block == 0:
            samples.narrow(node, operand, dim, state)
        elif state != Split(dim, size // block, split.inner):
            raise IndivisibleError(f"{node} has samples along two dimensions")
    return Split(dim, shape_of(node)[dim] // block, split.inner)


@rule("select_scatter", "slice_scatter", "gather", "scatter", "scatter_add")
def _scatter(samples: Samples, node: fx.Node) -> States:
    args, name, all_dims = args_of(node), name_of(node), range(rank_of(node))
    if name in ("gather", "scatter", "scatter_add"):
        return _put_together(samples, node, args[1], [(one, all_dims) for one in tensors_of(args)])
    dim = argument(args, 2, 0)
    kept = all_dims
    if name == "select_scatter":
        kept = [one for one in all_dims if one != dim % len(all_dims)]
    return _put_together(samples, node, dim, [(args[0], all_dims), (args[1], kept)])


def _put_together(samples: Samples, node: fx.Node, dim: int, operands: Operands) -> Split | Whole:
    """Return the state of a result that mixes elements of its operands along a dimension."""
    dim = dim % max(1, rank_of(node))
    others = [(one, [None if at == dim else at for at in dims]) for one, dims in operands]
    state = samples.joined(node, others)
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
    return _without(samples, node, dims, keeps=rank_of(node) == rank_of(given))


@rule("var_mean", "var", "max", "min", "argmax", "argmin", "rev")
def _along(samples: Samples, node: fx.Node) -> States:
    """Return the state of an operator that combines elements along non-sample dimensions."""
    results = node.meta["val"]
    dims: Any = argument(args_of(node), 1)
    if isinstance(dims, bool) or not isinstance(dims, int | list | tuple):
        raise IndivisibleError(f"{node} looks at several samples")
    first = results[0] if isinstance(results, list | tuple) else results
    keeps = first.dim() == rank_of(args_of(node)[0])
    state = _without(samples, node, [dims] if isinstance(dims, int) else dims, keeps=keeps)
    state = Whole() if isinstance(state, Whole) else state
    return tuple(state for _ in results) if isinstance(results, list | tuple) else state


@rule("mm", "bmm")
def _product(samples: Samples, node: fx.Node) -> States:
    left, right = args_of(node)
    rank = rank_of(node)
    batch, row, column = range(rank - 2), rank - 2, rank - 1
    along = [(left, column), (right, row)]
    states = [(operand, dim, samples.state(operand)) for operand, dim in along]
    if any(isinstance(state, Split) and state.dim == dim for _, dim, state in states):
        forms = {(one.outer, one.inner) for _, _, one in states if isinstance(one, Split)}
        for operand, dim, state in states:
            if isinstance(state, Whole):
                samples.narrow(node, operand, dim, state)
            elif state.dim != dim or len(forms) != 1:
                raise IndivisibleError(f"{node} looks at several samples")
        return Partial()
    factors = [(left, [*batch, row, None]), (right, [*batch, None, column])]
    return samples.joined(node, factors)
