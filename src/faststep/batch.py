"""Inputs and targets of a step or a data set, split into tensors and other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and targets of a step or a data set, split into tensors and other values.

    Args:
        tensors: All tensors; a sparse matrix contributes its indices and its values.
        others: All other values, such as flags; constants of a compiled step.
        layout: The structure that ``rebuild`` restores; None for a pair of plain tensors.
    """

    tensors: tuple[Tensor, ...]
    others: tuple[Any, ...] = ()
    layout: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The shapes, constants and layout that a compiled step is specialized for."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.tensors)
        return shapes, self.others, self.layout

    def rows(self, numbers: Tensor) -> Batch:
        """Return the batch with these samples of the data set."""
        return replace(self, tensors=tuple(tensor[numbers] for tensor in self.tensors))

    def contiguous(self) -> Batch:
        """Return the batch with contiguous tensors, as generated code reads them."""
        return replace(self, tensors=tuple(tensor.contiguous() for tensor in self.tensors))

    def rebuild(self, tensors: Sequence[Tensor], *, is_traced: bool = False) -> tuple[Any, Any]:
        """Return inputs and targets with the given tensors.

        Args:
            tensors: One for each tensor of the batch.
            is_traced: The tensors belong to a traced step, which has no sparse tensors.
        """
        if self.layout is None:
            return tensors[0], tensors[1]
        rest, others = iter(tensors), iter(self.others)
        leaves: list[Any] = []
        kinds, spec = self.layout
        for kind in kinds:
            if not isinstance(kind, _Sparse):
                leaves.append(next(rest) if kind else next(others))
            elif is_traced:
                leaves.append(SparseOperand(kind.shape, next(rest), next(rest)))
            else:
                matrix = torch.sparse_coo_tensor(
                    next(rest),
                    next(rest),
                    kind.shape,
                    is_coalesced=kind.is_coalesced,
                    check_invariants=False,
                )
                leaves.append(matrix)
        return pytree.tree_unflatten(leaves, spec)


def take_apart(inputs: Any, targets: Any) -> Batch:
    """Return inputs and targets as a batch; skip the search of containers for two plain tensors.

    Raises:
        FastStepError: A tensor has a sparse layout that compiled steps do not support.
    """
    if (
        isinstance(inputs, Tensor)
        and isinstance(targets, Tensor)
        and inputs.layout is targets.layout is torch.strided
    ):
        return Batch((inputs, targets))
    leaves, spec = pytree.tree_flatten((inputs, targets))
    kinds: list[bool | _Sparse] = []
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
            is_plain = leaf.layout is torch.sparse_coo and not leaf.requires_grad
            if not is_plain or leaf.sparse_dim() != 2 or leaf.dense_dim() != 0:
                raise FastStepError(
                    f"a tensor of the batch is sparse: {leaf.layout} of {leaf.dim()} dimensions",
                    hint="Covered is a matrix of coordinates, to_sparse_coo(), without a gradient.",
                )
            kinds.append(_Sparse(leaf.shape, leaf.is_coalesced()))
            tensors += (leaf._indices(), leaf._values())
    return Batch(tuple(tensors), tuple(others), (tuple(kinds), spec))


def take_data(inputs: Any, targets: Any) -> Batch:
    """Return a data set as a batch, with samples along the first dimension of each tensor.

    Raises:
        FastStepError: The data set contains a sparse matrix.
    """
    data = take_apart(inputs, targets)
    if data.layout is not None and any(type(kind) is _Sparse for kind in data.layout[0]):
        raise FastStepError(
            "samples cannot be taken from a sparse tensor",
            hint="Call the step itself for each batch.",
        )
    return data


def num_steps_of(indices: Tensor | None) -> int:
    """Return the number of steps of a call: one for each row of indices, or 1 without indices."""
    return 1 if indices is None else len(indices)


@dataclass(frozen=True, slots=True)
class _Sparse:
    """The constants of a sparse matrix; its indices and values may change."""

    shape: torch.Size
    is_coalesced: bool


class SparseOperand:
    """A sparse matrix in a traced step, which supports only products with dense matrices.

    A product sums over the neighbours of each row; so does its gradient.

    Args:
        shape: Sizes of the matrix.
        indices: Rows and columns of its values, as (2, values).
        values: The values; duplicates of one place add up.
    """

    is_sparse = True
    layout = torch.sparse_coo

    def __init__(self, shape: torch.Size, indices: Tensor, values: Tensor) -> None:
        self.shape = shape
        self.dtype, self.device = values.dtype, values.device
        self._indices, self._values = indices, values

    def size(self, dim: int | None = None) -> Any:
        """Return all sizes, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Return the product with a dense matrix."""
        if dense.dim() != 2:
            raise FastStepError("the product of a sparse tensor and a vector is not covered")
        if dense.shape[0] != self.shape[1]:
            raise RuntimeError(f"a {tuple(self.shape)} matrix does not fit {tuple(dense.shape)}")
        rows, columns = self._indices.unbind()
        terms = self._values.unsqueeze(1) * dense.index_select(0, columns)
        return terms.new_zeros(self.shape[0], dense.shape[1]).index_add(0, rows, terms)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Compute products with dense matrices; refuse all other torch functions."""
        products = (torch.mm, torch.spmm, torch.matmul, torch.sparse.mm)
        if function in products and len(args) == 2 and not kwargs:
            sparse, dense = args
            if isinstance(sparse, SparseOperand) and isinstance(dense, Tensor):
                return sparse @ dense
        name = getattr(function, "__name__", str(function))
        raise FastStepError(
            f"{name} of a sparse tensor is not covered: only its product with a dense matrix is",
            hint="Compute what does not change before the loop, or keep the loop as it is.",
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse all other attributes of a tensor."""
        if name.startswith("__"):  # Python looks up special names itself
            raise AttributeError(name)
        raise FastStepError(f"`.{name}` of a sparse tensor is not covered")
