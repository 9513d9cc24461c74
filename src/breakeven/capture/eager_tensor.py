"""Real tensors on the CPU: found among arguments, described for the trace, computed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from breakeven.capture.device_map import DeviceMap, sparse_values
from breakeven.trace import TensorSpec

# Half precision is emulated on most CPUs, 10-20 times slower than float32, which computes the
# same operator with the same shapes and only more digits.
_SLOW_IN_HALF = frozenset({
    "aten.convolution", "aten.convolution_backward", "aten.mm", "aten.addmm", "aten.bmm",
    "aten.baddbmm", "aten.addmv", "aten.mv",
})  # fmt: skip


def describe(tensor: torch.Tensor, devices: DeviceMap) -> TensorSpec:
    """Return what the trace keeps of a tensor."""
    values = sparse_values(tensor)
    return TensorSpec(
        shape=tuple((tensor if values is None else values).shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=devices.device_of(tensor),
        layout=_layout_of(tensor) if values is None else "sparse",
        storage=devices.number_of(tensor),
    )


# These have overloads that take `out_dtype`, for GPUs alone.
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})


def run_on_cpu(func: Any, base_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU, in float32 where half precision would be emulated."""
    if base_name in _PRODUCTS and func._overloadname.startswith("dtype"):
        *tensors, dtype = args
        plain = getattr(func.overloadpacket, "out" if "out" in kwargs else "default")
        return plain(*(tensor.to(dtype) for tensor in tensors), **kwargs)
    if base_name not in _SLOW_IN_HALF or not any(
        tensor.dtype is torch.float16 for tensor in tensors_in(args)
    ):
        return func(*args, **kwargs)

    def convert(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(target) if value.dtype is source else value
        if isinstance(value, (list, tuple)):
            return type(value)(convert(item, source, target) for item in value)
        return value

    wide = tuple(convert(value, torch.float16, torch.float32) for value in args)
    return convert(func(*wide, **kwargs), torch.float32, torch.float16)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among ``values``, those in lists and tuples included."""
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
