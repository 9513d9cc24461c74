"""What is kept of a loss or a gradient, to compare it with that of another run."""

from __future__ import annotations

import gc
import hashlib
import math

import torch
from torch import nn

from breakeven.configure import children_of, named_parameters_of
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


# What torch.compile puts in front of the names of what it wraps.
_COMPILED = "_orig_mod."


class ParameterNames:
    """Finds the names of parameters in the models that hold them.

    Models are looked for among all objects of the process, once for each parameter that is not
    known yet: a hook in their calls would be compiled into them, or keep them from it.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name in the outermost model; None for a parameter of no model."""
        if id(parameter) not in self._names:
            self._names.update(
                (id(each), name.replace(_COMPILED, ""))
                for model in _outermost_models()
                for name, each in named_parameters_of(model)
            )
            # Asked for once: what has no name now is not looked for at every update.
            self._names.setdefault(id(parameter), "")
        return self._names[id(parameter)] or None


def _outermost_models() -> list[nn.Module]:
    """Return the models that are part of no other, the largest last."""
    # By the type, since an object may pretend another class.
    models = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    complete = [model for model in models if "_modules" in vars(model)]
    parts = {id(part) for model in complete for part in children_of(model)}
    return sorted((model for model in complete if id(model) not in parts), key=_num_parameters)


def _num_parameters(model: nn.Module) -> int:
    return len({id(each) for _, each in named_parameters_of(model)})
