"""``torch.cuda.FloatTensor`` and its kin, which scripts before ``torch.device`` are full of."""

from __future__ import annotations

from typing import Any

import torch

from breakeven.configure import Patches

_DTYPES = {
    "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16, "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64, "BoolTensor": torch.bool, "ByteTensor": torch.uint8,
    "CharTensor": torch.int8, "ShortTensor": torch.int16, "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}  # fmt: skip
_CUDA = "torch.cuda."


class _CudaTensorType:
    """Makes tensors on the CUDA device, and knows them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *values: Any) -> torch.Tensor:
        if all(isinstance(value, int) for value in values):
            return torch.empty(values, dtype=self.dtype, device="cuda")
        if isinstance(values[0], torch.Size):
            return torch.empty(values[0], dtype=self.dtype, device="cuda")
        return torch.as_tensor(values[0], dtype=self.dtype, device="cuda")

    def __instancecheck__(self, item: object) -> bool:
        return isinstance(item, torch.Tensor) and item.is_cuda and item.dtype == self.dtype


def patch_legacy_types(patches: Patches) -> None:
    """Let the tensor types of ``torch.cuda`` work on a torch that was built without CUDA."""
    types = {name: _CudaTensorType(dtype) for name, dtype in _DTYPES.items()}
    for name, value in types.items():
        patches.replace(torch.cuda, name, value)
    original_type = torch.Tensor.type
    original_default = torch.set_default_tensor_type

    def find(wanted: Any) -> Any:
        if isinstance(wanted, str) and wanted.startswith(_CUDA):
            return types.get(wanted.removeprefix(_CUDA), wanted)
        return wanted

    def convert(
        tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **_: Any
    ) -> Any:
        if dtype is None:
            # Under a function mode torch finds this function again, by its name.
            name = str(original_type(tensor)).removeprefix(_CUDA).removeprefix("torch.")
            return (_CUDA if tensor.is_cuda else "torch.") + name
        wanted = find(dtype)
        if isinstance(wanted, torch.dtype):
            return tensor.to(wanted, non_blocking=non_blocking)
        if isinstance(wanted, _CudaTensorType):
            return tensor.to("cuda", wanted.dtype, non_blocking=non_blocking)
        # A type of the CPU brings the tensor back.
        name = wanted if isinstance(wanted, str) else wanted.__name__
        target = _DTYPES.get(name.rpartition(".")[2])
        return original_type(tensor, dtype) if target is None else tensor.to("cpu", target)

    def set_default_tensor_type(wanted: Any) -> None:
        found = find(wanted)
        if isinstance(found, _CudaTensorType):
            torch.set_default_dtype(found.dtype)
            torch.set_default_device("cuda")
        else:
            original_default(wanted)

    patches.replace(torch.Tensor, "type", convert)
    patches.replace(torch, "set_default_tensor_type", set_default_tensor_type)
