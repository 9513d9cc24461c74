"""Properties of torch's operators by name: their arguments, and which of them sync."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from breakeven.capture.record.device_map import DeviceMap, sparse_values
from breakeven.processor import has_half_hardware
from breakeven.trace import TensorSpec

# Operators with a result size known only to the device, or that read a value back.
# Source: the implementations in aten/src/ATen/native/cuda, which copy to the host and wait.
_SYNC_KINDS = {
    "aten._local_scalar_dense": "item",
    "aten.masked_select": "mask",
    "aten._linalg_check_errors": "linalg",
    **{f"aten.{name}": name for name in ("equal", "nonzero", "repeat_interleave", "bincount")},
    **dict.fromkeys(("aten._coalesce", "aten.coalesce"), "coalesce"),
    **dict.fromkeys(
        ("aten._unique", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive"), "unique"
    ),
}
INDEXING = frozenset({"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"})

COPYING = frozenset({"aten.copy_", "aten._foreach_copy_"})
# Operators on lists of tensors, which treat each position separately.
_ALL_AT_ONCE = "aten._foreach_"
_WRITING = frozenset({"aten.index_put", "aten.index_put_", "aten._index_put_impl_"})

# Operators that take tensors of both host and device: indices may stay on the host.
_MIXING = frozenset({
    *INDEXING, "aten._unsafe_index", "aten._unsafe_index_put", "aten.set_", "aten.resize_as_",
})  # fmt: skip

# Results on the host of operators on the device, by position.
HOST_RESULTS = {"aten._pack_padded_sequence": 1}


def sync_kind(name: str, inputs: list[torch.Tensor]) -> str | None:
    """Return the reason that the host waits in an operator on the device, or None."""
    base_name = name.rsplit(".", 1)[0]
    if base_name in INDEXING:
        return "mask" if masks_of(inputs) else None
    if base_name == "aten.repeat_interleave" and not name.endswith(".Tensor"):
        return None
    return _SYNC_KINDS.get(base_name)


def masks_of(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the masks with which an operator selects from its first tensor."""
    return [tensor for tensor in inputs[1:] if tensor.dtype in (torch.bool, torch.uint8)]


def find_stray(base_name: str, arguments: Sequence[Any], devices: DeviceMap) -> str | None:
    """Return why CUDA refuses the devices of an operator's inputs, or None if it accepts them.

    Tensors without dimensions may always be on the host: operators on the device take them as
    numbers. The few exceptions are not reported, to avoid blaming a line that works. Operators on
    lists may treat each tensor separately.

    Args:
        base_name: Name without overload: ``aten.add``.
        arguments: Arguments of the call.
        devices: Devices of the tensors.

    Source: aten/src/ATen/TensorIterator.cpp, compute_types; ``device_check`` in
    aten/src/ATen/native/native_functions.yaml, and the operators that have it off;
    aten/src/ATen/native/ForeachUtils.h, can_use_fast_route.
    """
    if not base_name.startswith(_ALL_AT_ONCE):
        return _stray(base_name, list(tensors_in(arguments)), devices)
    lists = [given for given in arguments if isinstance(given, (list, tuple))]
    for row in zip(*lists, strict=False):
        tensors = [item for item in row if isinstance(item, torch.Tensor)]
        is_mixed = 0 < sum(map(devices.is_on_device, tensors)) < len(tensors)
        if is_mixed and (stray := _stray("", tensors, devices)):
            return stray
    return None


def _stray(base_name: str, inputs: list[torch.Tensor], devices: DeviceMap) -> str | None:
    hosted = [item for item in inputs if not devices.is_on_device(item)]
    if base_name in COPYING:
        return None
    if base_name == "aten._pack_padded_sequence":
        if devices.is_on_device(inputs[1]):
            return "takes the lengths of the sequences on the CPU; they are on cuda:0"
        return None
    if base_name.startswith("aten._ctc_loss"):
        # cuDNN takes the targets on the host; other implementations move them.
        # Source: aten/src/ATen/native/LossCTC.cpp, ctc_loss_impl.
        return None
    if base_name in _MIXING and devices.is_on_device(inputs[0]):
        # Indices may be on the host; written values may not.
        written = inputs[-1:] if base_name in _WRITING else []
        hosted = [item for item in written if not devices.is_on_device(item)]
        if written and _fills(inputs, devices):
            return None
    elif base_name in _WRITING and not inputs[-1].dim():
        # A single value on the device is read back, and written on the host.
        hosted = hosted if any(map(devices.is_on_device, inputs[:-1])) else []
    shapes = [tuple(tensor.shape) for tensor in hosted if tensor.dim()]
    if not shapes:
        return None
    return f"combines tensors on cuda:0 with one of shape {shapes[0]} that is still on the CPU"


def is_masked_fill(
    name: str, inputs: list[torch.Tensor], devices: DeviceMap, *, in_backward: bool
) -> bool:
    """Return whether the operator is ``x[mask] = number``, which fills without reading back.

    In its backward pass, C++ creates a zero in place of the number, which counts as on the host.

    Source: aten/src/ATen/native/TensorAdvancedIndexingUtils.h, canDispatchToMaskedFill.
    """
    if name.rsplit(".", 1)[0] not in _WRITING:
        return False
    return _fills(inputs, devices, in_backward=in_backward)


def _fills(inputs: list[torch.Tensor], devices: DeviceMap, *, in_backward: bool = False) -> bool:
    if len(inputs) != 3:
        return False
    _, mask, value = inputs
    is_on_host = not devices.is_on_device(value) or (in_backward and not value.dim())
    is_number = value.numel() == 1 and is_on_host
    is_mask = mask.dtype in (torch.bool, torch.uint8) and devices.is_on_device(mask)
    return is_number and is_mask


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


# Keep torch's original types: a device's stand-in is slow to check.
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def _as_json(value: Any) -> Any:
    """Return ``value`` as a JSON value, or None for tensors and meaningless values."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinities and no NaN; no cost depends on them.
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, (list, tuple)):
        items = [_as_json(item) for item in value]
        return None if any(item is None for item in items) else items
    return None


# Most CPUs emulate half precision, 10-50 times slower than float32. In float32 the same operator
# has the same shapes, and only more digits.
_SLOW_IN_HALF = frozenset({
    "aten.convolution", "aten.convolution_backward", "aten.mm", "aten.addmm", "aten.bmm",
    "aten.baddbmm", "aten.addmv", "aten.mv",
})  # fmt: skip


def describe(tensor: torch.Tensor, devices: DeviceMap) -> TensorSpec:
    """Return the trace's description of a tensor."""
    values = sparse_values(tensor)
    device, storage = devices.place_of(tensor)
    return TensorSpec(
        shape=tuple((tensor if values is None else values).shape),
        dtype=_dtype_name(tensor.dtype),
        device=device,
        layout=_layout_of(tensor) if values is None else "sparse",
        storage=storage,
    )


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# These have overloads with `out_dtype`, only for GPUs.
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})


def run_on_cpu(func: Any, base_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU, in float32 if half precision would be slow.

    Calls that torch refuses, such as tensors of several dtypes, stay unchanged, and so do writes to
    a given tensor.
    """
    if base_name in _PRODUCTS and func._overloadname.startswith("dtype"):
        *tensors, dtype = args
        plain = getattr(func.overloadpacket, "out" if "out" in kwargs else "default")
        return plain(*(tensor.to(dtype) for tensor in tensors), **kwargs)
    may_be_slow = base_name in _SLOW_IN_HALF and "out" not in kwargs
    dtypes = {tensor.dtype for tensor in tensors_in(args)} if may_be_slow else set[torch.dtype]()
    if len(dtypes) != 1 or not dtypes <= _slow_dtypes():
        return func(*args, **kwargs)
    (half,) = dtypes

    def convert(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(target) if value.dtype is source else value
        if isinstance(value, (list, tuple)):
            return type(value)(convert(item, source, target) for item in value)
        return value

    wide = tuple(convert(value, half, torch.float32) for value in args)
    return convert(func(*wide, **kwargs), torch.float32, half)


@cache
def _slow_dtypes() -> frozenset[torch.dtype]:
    # Processors differ in the operators that use their own fp16; float32 is slow on none.
    fp16 = frozenset({torch.float16})
    return fp16 if has_half_hardware("bf16") else fp16 | {torch.bfloat16}


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among ``values``, including those in lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _layout_of(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return "strided"
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    strides = tensor.stride()
    if any(stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True)):
        return "expanded"
    if tensor.dim() >= 2 and strides[-2] == 1 and strides[-1] == tensor.shape[-2]:
        return "transposed"
    return "strided"
