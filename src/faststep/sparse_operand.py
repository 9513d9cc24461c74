"""A sparse matrix of a batch, as the dense tensors that it consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faststep.errors import FastStepError


@dataclass(frozen=True, slots=True)
class SparseFacts:
    """What is fixed of a sparse matrix: all but its indices and values.

    Args:
        shape: Its sizes.
        is_coalesced: Whether its indices are in order, each once.
    """

    shape: tuple[int, int]
    is_coalesced: bool

    def joined(self, indices: Tensor, values: Tensor) -> Tensor:
        """Return the matrix of indices and values."""
        return torch.sparse_coo_tensor(
            indices, values, self.shape, is_coalesced=self.is_coalesced, check_invariants=False
        )

    def operand(self, indices: Tensor, values: Tensor) -> SparseOperand:
        """Return what stands for the matrix where a step is traced."""
        return SparseOperand(self.shape, indices, values)


def taken_apart(tensor: Tensor) -> tuple[SparseFacts, Tensor, Tensor]:
    """Return what a sparse matrix consists of: what is fixed of it, indices and values.

    Raises:
        FastStepError: It is no matrix of coordinates (COO), or has a gradient of its own.
    """
    is_plain = tensor.layout is torch.sparse_coo and not tensor.requires_grad
    if not is_plain or tensor.sparse_dim() != 2 or tensor.dense_dim() != 0:
        raise FastStepError(
            f"a tensor of the batch is sparse: {tensor.layout} of {tensor.dim()} dimensions",
            hint="Covered is a matrix of coordinates, to_sparse_coo(), without a gradient.",
        )
    rows, columns = tensor.shape
    facts = SparseFacts((rows, columns), tensor.is_coalesced())
    return facts, tensor._indices(), tensor._values()


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

    def __init__(self, shape: tuple[int, int], indices: Tensor, values: Tensor) -> None:
        self.shape = torch.Size(shape)
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
        """Do a function of torch's that is given one."""
        name = getattr(function, "__name__", str(function))
        match args:
            case (SparseOperand() as sparse, Tensor() as dense) if function in _PRODUCTS:
                if not kwargs:
                    return sparse @ dense
            case _:
                pass
        raise FastStepError(
            f"{name} of a sparse tensor is not covered: only its product with a dense matrix is",
            hint="Compute what does not change before the loop, or keep the loop as it is.",
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse what else a tensor has."""
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        raise FastStepError(f"`.{name}` of a sparse tensor is not covered")


_PRODUCTS = (torch.mm, torch.spmm, torch.matmul, torch.sparse.mm)
