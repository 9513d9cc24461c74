"""Inputs and targets of a step, or of a whole data set, taken apart into tensors and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError
from faststep.sparse_operand import SparseFacts, taken_apart


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and targets of a step, or of a whole data set, taken apart.

    Args:
        tensors: The tensors in them; of a sparse matrix, its indices and its values.
        others: Everything else in them, such as flags; part of what a compiled step is made for.
        layout: How the two go together again.
    """

    tensors: tuple[Tensor, ...]
    others: tuple[Any, ...]
    layout: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step depends on."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.tensors)
        return shapes, self.others, self.layout

    def rows(self, numbers: Tensor) -> Batch:
        """Return the batch of these samples of a data set."""
        return replace(self, tensors=tuple(tensor[numbers] for tensor in self.tensors))

    def contiguous(self) -> Batch:
        """Return it with its tensors as generated code reads them."""
        return replace(self, tensors=tuple(tensor.contiguous() for tensor in self.tensors))

    def rebuild(self, tensors: Sequence[Tensor], *, is_traced: bool = False) -> tuple[Any, Any]:
        """Return inputs and targets with other tensors in the place of these.

        Args:
            tensors: As many as its own.
            is_traced: They are those of a traced step, which has no sparse tensors.
        """
        if self.layout is None:
            return tensors[0], tensors[1]
        rest, others = iter(tensors), iter(self.others)
        leaves: list[Any] = []
        kinds, spec = self.layout
        for kind in kinds:
            if isinstance(kind, SparseFacts):
                make = kind.operand if is_traced else kind.joined
                leaves.append(make(next(rest), next(rest)))
            else:
                leaves.append(next(rest) if kind else next(others))
        return pytree.tree_unflatten(leaves, spec)


def take_apart(inputs: Any, targets: Any) -> Batch:
    """Return a batch; the usual one, of two tensors, without a look into containers.

    Raises:
        FastStepError: A tensor in it is sparse in a way that no step is made for.
    """
    if (
        isinstance(inputs, Tensor)
        and isinstance(targets, Tensor)
        and inputs.layout is targets.layout is torch.strided
    ):
        return Batch((inputs, targets), (), None)
    leaves, spec = pytree.tree_flatten((inputs, targets))
    kinds: list[bool | SparseFacts] = []
    tensors: list[Tensor] = []
    others: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            kinds.append(False)
            others.append(leaf)
        elif leaf.layout is torch.strided:
            kinds.append(True)
            tensors.append(leaf)
        else:
            facts, indices, values = taken_apart(leaf)
            kinds.append(facts)
            tensors += (indices, values)
    return Batch(tuple(tensors), tuple(others), (tuple(kinds), spec))


def take_data(inputs: Any, targets: Any) -> Batch:
    """Return a data set, whose samples lie along the first dimension of its tensors.

    Raises:
        FastStepError: There is a sparse matrix in it.
    """
    data = take_apart(inputs, targets)
    if data.layout is not None and any(type(kind) is SparseFacts for kind in data.layout[0]):
        raise FastStepError(
            "samples cannot be taken from a sparse tensor",
            hint="Call the step itself for each batch.",
        )
    return data


def num_steps_of(indices: Tensor | None) -> int:
    """Return how many steps a call does: one for each row of indices, or a single one."""
    return 1 if indices is None else len(indices)


class PairFacts:
    """What inputs and targets must be like, where each is one tensor on the CPU."""

    __slots__ = ("_dtype", "_other_dtype", "_other_shape", "_other_stride", "_shape", "_stride")

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._shape, self._stride, self._dtype = inputs.shape, inputs.stride(), inputs.dtype
        self._other_shape, self._other_stride = targets.shape, targets.stride()
        self._other_dtype = targets.dtype

    def holds(self, inputs: Any, targets: Any) -> bool:
        """Return whether both are like this; asked before each small step, so without a loop."""
        return (
            type(inputs) is Tensor
            and type(targets) is Tensor
            and inputs.shape == self._shape
            and targets.shape == self._other_shape
            and inputs.layout is targets.layout is torch.strided
            and inputs.dtype is self._dtype
            and targets.dtype is self._other_dtype
            and inputs.stride() == self._stride
            and targets.stride() == self._other_stride
            and inputs.is_cpu
            and targets.is_cpu
        )
