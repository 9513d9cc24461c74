"""What the names of torch's operators tell: their arguments, and which of them wait."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from breakeven.capture._device_map import HOST, DeviceMap

# Operators whose result has a size that only the device knows, or that read a value back.
# Source: the implementations in aten/src/ATen/native/cuda, which copy to the host and wait.
_SYNC_KINDS = {
    "aten._local_scalar_dense": "item",
    "aten.equal": "equal",
    "aten.nonzero": "nonzero",
    "aten.masked_select": "mask",
    "aten._unique": "unique",
    "aten._unique2": "unique",
    "aten.unique_dim": "unique",
    "aten.unique_consecutive": "unique",
    "aten.repeat_interleave": "repeat_interleave",
    "aten._linalg_check_errors": "linalg",
    "aten.bincount": "bincount",
}
_INDEXING = frozenset({"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"})

# Operators that take tensors of both host and device: indices and step counters may stay on the
# host, and the fused update reads its counters wherever they are.
_MIXING = frozenset({
    *_INDEXING, "aten._unsafe_index", "aten._unsafe_index_put", "aten.set_", "aten.resize_as_",
    "aten._pack_padded_sequence",
})  # fmt: skip


def sync_kind(name: str, inputs: list[torch.Tensor]) -> str | None:
    """Return what makes the host wait in an operator on the device, or None."""
    base_name = name.rsplit(".", 1)[0]
    if base_name in _INDEXING:
        has_mask = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in inputs[1:])
        return "mask" if has_mask else None
    if base_name == "aten.repeat_interleave" and not name.endswith(".Tensor"):
        return None
    return _SYNC_KINDS.get(base_name)


def is_mixed_legally(name: str, inputs: list[torch.Tensor], devices: DeviceMap) -> bool:
    """Return whether CUDA accepts host tensors among the inputs of this operator."""
    return name in _MIXING and devices.device_of(inputs[0]) != HOST


@cache
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def attributes_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the non-tensor arguments of a call by their schema name, as JSON values."""
    found: dict[str, Any] = {}
    for name, value in (*zip(_argument_names(func), args, strict=False), *kwargs.items()):
        plain = _as_json(value)
        if plain is not None:
            found[name] = plain
    return found


def _as_json(value: Any) -> Any:
    """Return ``value`` as JSON knows it, or None for tensors and for what says nothing."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinities and no NaN; no cost depends on them.
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, (list, tuple)):
        items = [_as_json(item) for item in value]
        return None if any(item is None for item in items) else items
    return None
