"""What becomes of an operator when a step is done for a part of its samples at a time.

A tensor is split along one dimension, or whole: the same for every part. What a product or a sum
takes together over all samples is partial: its values of all parts are added. What is computed
from such a sum other than by adding comes late, after all parts.

The rules are a proof that the parts together are the whole. An operator without a rule, or one that
looks at several samples at once, has none: its result comes late, and where samples need that, the
step is not divided.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from faststep.codegen.pointwise import POINTWISE


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor of which a part has some of the samples.

    Args:
        dim: The dimension that they lie along.
        outer: Elements of it that lie outside of a sample: steps of a sequence before samples.
        inner: Elements of it of one sample.
    """

    dim: int
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that every part has as a whole.

    Args:
        constant: Dimensions along which all of its elements are equal.
    """

    constant: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Partial:
    """A tensor that is the sum of those of all parts."""


@dataclass(frozen=True, slots=True)
class Late:
    """A tensor that is known after all parts."""


State = Split | Whole | Partial | Late
# Of an operator with several results, one for each.
States = State | tuple[State, ...]


class IndivisibleError(Exception):
    """A step cannot be divided by its samples."""


class Samples:
    """The states of a graph's nodes.

    Args:
        num_samples: How many samples the batch has.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.states: dict[fx.Node, States] = {}
        # Operands that are whole and constant, of which a part takes fewer: by node and operand.
        self.narrowed: dict[tuple[fx.Node, fx.Node], int] = {}
        # Means over samples: a part sums, and divides by the number of all.
        self.means: set[fx.Node] = set()
        # Sums over the batch alone, such as a number of targets, which each part finds for itself.
        self.early: set[fx.Node] = set()

    def find(self, node: fx.Node) -> States:
        """Return the state of a node, those of its operands being known.

        What cannot be divided comes late: the step cannot be, if its samples need it.
        """
        try:
            return self._find(node)
        except IndivisibleError:
            return Late()

    def _find(self, node: fx.Node) -> States:
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
        return rule(self, node)

    def _is_early(self, node: fx.Node) -> bool:
        """Return whether a sum is of little but the batch."""
        found: set[fx.Node] = set()
        left = _MOST_EARLY * self.num_samples
        todo = [node]
        while todo:
            one = todo.pop()
            if one in found:
                continue
            found.add(one)
            if len(found) > _MOST_EARLY or name_of(one) not in _EARLY:
                return False
            left -= math.prod(getattr(one.meta.get("val"), "shape", ()))
            if left < 0:
                return False
            todo += one.all_input_nodes if filled_with(one) is None else []
        return True

    def state(self, node: Any) -> Split | Whole:
        """Return the state of an operand that is split or whole."""
        found = self.states[node]
        if node in self.early:
            return Whole()
        if not isinstance(found, Split | Whole):
            raise IndivisibleError(f"{node} is several tensors")
        return found

    def joined(
        self, node: fx.Node, operands: Sequence[tuple[Any, Sequence[int | None]]], rank: int
    ) -> Split | Whole:
        """Return the state of a result, each dimension of which is one of the operands'.

        Args:
            node: The operator.
            operands: Each with the dimension of the result that each of its own is; None for
                those that the result has not.
            rank: Number of the result's dimensions.
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
        if found is None:
            constant = set(range(rank))
            for operand, dims in operands:
                state = self.state(operand)
                assert isinstance(state, Whole)
                for own, dim in enumerate(dims):
                    if shape_of(operand)[own] != 1 and own not in state.constant:
                        constant -= {dim}
            return Whole(frozenset(constant))
        for operand, dims in operands:
            state = self.state(operand)
            if isinstance(state, Whole):
                for own, dim in enumerate(dims):
                    if dim == found.dim and shape_of(operand)[own] != 1:
                        self.narrow(node, operand, own, state)
        return found

    def narrow(self, node: fx.Node, operand: fx.Node, dim: int, state: Whole) -> None:
        """Let a part take fewer of a tensor that is the same along a dimension.

        Raises:
            IndivisibleError: It is not.
        """
        if dim not in state.constant or self.narrowed.get((node, operand), dim) != dim:
            raise IndivisibleError(f"{operand} is another one for each sample of {node}")
        self.narrowed[node, operand] = dim


Rule = Callable[[Samples, fx.Node], States]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that makes a function the rule of operators."""

    def register(one: Rule) -> Rule:
        for name in names:
            RULES[name] = one
        return one

    return register


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's only result."""
    return tuple(node.meta["val"].shape)


def name_of(node: fx.Node) -> str:
    """Return the name of a node's operator in ATen; nothing where it has none."""
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def closure_of(node: fx.Node) -> set[fx.Node]:
    """Return all that a node is computed from, and itself."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += one.all_input_nodes if filled_with(one) is None else []
    return found


def rank_of(node: fx.Node) -> int:
    """Return the number of dimensions of a node's only result."""
    return node.meta["val"].dim()


def args_of(node: fx.Node) -> list[Any]:
    """Return an operator's arguments."""
    return list(node.args)


def tensors_of(given: Any) -> list[fx.Node]:
    """Return the nodes in arguments."""
    if isinstance(given, fx.Node):
        return [given]
    if isinstance(given, list | tuple):
        return [one for part in given for one in tensors_of(part)]
    return []


def filled_with(node: fx.Node) -> float | None:
    """Return the number that all elements of a new tensor are, whatever it is made like."""
    name = name_of(node)
    place = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1}.get(name)
    if place is not None:
        value = node.args[place]
        return value if isinstance(value, bool | int | float) else None
    return _FILLED.get(name.removeprefix("new_").removesuffix("_like").removesuffix("_strided"))


# What is new and has no values yet may have any.
_FILLED = {"zeros": 0, "ones": 1, "empty": 0}
# What is found early is computed in each part: so many operators, and numbers for each sample.
_MOST_EARLY = 64
_LOOKS = ("permute", "t", "transpose", "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")


def _is_linear(node: fx.Node, name: str) -> bool:
    """Return whether the sum of an operator's results is its result of the sum."""
    if name in ("alias", "clone", "detach", "neg", *_LOOKS):
        return True
    tensors = tensors_of(node.args[:2])
    if name in ("add", "sub"):  # not of a number, which would be added in each part
        return len(tensors) == 2
    is_scaled = name == "mul" or (name == "div" and not node.kwargs.get("rounding_mode"))
    return is_scaled and tensors == [node.args[0]]


WITHIN_ELEMENTS = (
    *POINTWISE,
    *("abs", "addcdiv", "addcmul", "alias", "bitwise_not", "clamp", "clamp_max", "clamp_min"),
    *("clone", "contiguous", "convert_element_type", "copy", "detach", "floor_divide", "fmod"),
    *("lift_fresh_copy", "pow", "remainder", "signbit", "_to_copy", "where"),
)
_FILLS = ("full", "full_like", "scalar_tensor", "zeros", "ones", "zeros_like", "ones_like")
_EARLY = {
    "",
    "sum",
    "mean",
    "amax",
    "amin",
    "var",
    "std",
    "expand",
    "select",
    "slice",
    *_FILLS,
    *WITHIN_ELEMENTS,
    *_LOOKS,
}
