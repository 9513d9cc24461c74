"""What is kept of a loss or a gradient, to compare it with that of another run."""

from __future__ import annotations

import hashlib
import math

import torch

from breakeven.verdict import TensorNumbers

# Enough to see any part of a tensor that is wrong; the norm and the digest are of all of it.
_MOST_ELEMENTS = 4096


def tensor_numbers(
    tensor: torch.Tensor, *, key: str, name: str, scale: torch.Tensor | None = None
) -> TensorNumbers:
    """Return what is kept of a tensor.

    Args:
        tensor: A loss or a gradient, on any device, dense or sparse.
        key: What pairs it with its like in another run.
        name: What a person calls it.
        scale: What it has been multiplied by, to be undone.
    """
    # Autograd must not see this, and a region of the script's own must not round it.
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _numbers_of(tensor.detach(), key, name, scale)


def _numbers_of(
    tensor: torch.Tensor, key: str, name: str, scale: torch.Tensor | None
) -> TensorNumbers:
    digest = hashlib.sha256()
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor.to_dense()
    if tensor.is_sparse:
        digest.update(_bytes_of(tensor.indices().cpu()))
        tensor = tensor.values()
        shape = tuple(tensor.shape)
    if scale is not None:
        # As GradScaler does it: by the reciprocal.
        tensor = tensor * scale.double().reciprocal().to(tensor.dtype)
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    row = tensor.shape[-1] if tensor.dim() else 1
    # In the order of its elements, whatever the memory layout is.
    flat = tensor.contiguous().flatten()
    digest.update(_bytes_of(flat))
    is_finite = torch.isfinite(flat)
    num_not_finite = int((~is_finite).sum())
    finite = torch.where(is_finite, flat, 0) if num_not_finite else flat
    return TensorNumbers(
        key=key,
        name=name,
        dtype=dtype,
        shape=shape,
        digest=digest.digest(),
        norm=float(torch.linalg.vector_norm(finite, dtype=torch.float64)),
        num_not_finite=num_not_finite,
        elements=flat[:: _stride(flat.numel(), row)].double().numpy().tobytes(),
    )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


def _stride(num_elements: int, row: int) -> int:
    """Return a stride that meets every column of a matrix, not always the same one."""
    stride = max(1, math.ceil(num_elements / _MOST_ELEMENTS))
    while stride > 1 and math.gcd(stride, row) > 1:
        stride += 1
    return stride
