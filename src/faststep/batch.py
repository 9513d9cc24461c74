"""Inputs and targets of a step, or of a whole data set, taken apart into tensors and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and targets of a step, or of a whole data set, taken apart.

    Args:
        tensors: The tensors in them; of a sparse matrix, its indices and its values.
        others: Everything else in them, such as flags; part of what a compiled step is made for.
        layout: How the two go together again; None for one tensor and one tensor.
    """

    tensors: tuple[Tensor, ...]
    others: tuple[Any, ...] = ()
    layout: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What a compiled step depends on."""
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
    """Return a batch; the usual one, of two tensors, without a look into containers.

    Raises:
        FastStepError: A tensor in it is sparse in a way that no step is made for.
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
    """Return a data set, whose samples lie along the first dimension of its tensors.

    Raises:
        FastStepError: There is a sparse matrix in it.
    """
    data = take_apart(inputs, targets)
    if data.layout is not None and any(type(kind) is _Sparse for kind in data.layout[0]):
        raise FastStepError(
            "samples cannot be taken from a sparse tensor",
            hint="Call the step itself for each batch.",
        )
    return data


def num_steps_of(indices: Tensor | None) -> int:
    """Return how many steps a call does: one for each row of indices, or a single one."""
    return 1 if indices is None else len(indices)


@dataclass(frozen=True, slots=True)
class _Sparse:
    """What is fixed of a sparse matrix: all but its indices and values."""

    shape: torch.Size
    is_coalesced: bool


class SparseOperand:
    """A sparse matrix in a traced step: its products with dense matrices are known, and no more.

    Each is a sum over the neighbours of every row, so that its gradient is one as well.

    Args:
        shape: Sizes of the matrix.
        indices: Rows and columns of its values, as (2, values).
        values: Those; of the same place, they add up.
    """

    is_sparse = True
    layout = torch.sparse_coo

    def __init__(self, shape: torch.Size, indices: Tensor, values: Tensor) -> None:
        self.shape = shape
        self.dtype, self.device = values.dtype, values.device
        self._indices, self._values = indices, values

    def size(self, dim: int | None = None) -> Any:
        """Return its sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Return its product with a dense matrix."""
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
        """Do a function of torch's that gets one."""
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
        """Refuse what else a tensor has."""
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        raise FastStepError(f"`.{name}` of a sparse tensor is not covered")


def epoch_rows(
    num_samples: int,
    *,
    batch_size: int,
    epochs: int,
    every: int,
    shuffle: bool,
    drop_last: bool,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Return the samples of the steps to come, one row for each step, up to ``every`` at a time.

    The samples that do not fill a batch are a row of their own at the end of an epoch. The
    arguments are those of ``FastStep.train``.

    Raises:
        FastStepError: A number makes no sense.
    """
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("every", every)):
        if value < 1:
            raise FastStepError(f"{name} is {value}: it must be 1 or more")
    num_whole = num_samples - num_samples % batch_size
    if not num_samples or (drop_last and not num_whole):
        raise FastStepError(f"{num_samples} samples do not fill a batch of {batch_size}")

    for _ in range(epochs):
        order = torch.arange(num_samples)
        if shuffle:
            order = torch.randperm(num_samples, generator=generator)
        if num_whole:
            yield from order[:num_whole].view(-1, batch_size).split(every)
        if num_whole < num_samples and not drop_last:
            yield order[num_whole:].view(1, -1)
