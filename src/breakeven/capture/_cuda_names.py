"""How scripts name a CUDA device, and what is done about a second one."""

from __future__ import annotations

from typing import Any

import torch


class SecondDeviceError(RuntimeError):
    """The script asked for ``cuda:1`` or beyond; a step is predicted on one GPU."""


def is_cuda(device: Any) -> bool:
    """Return whether ``device`` (a string, ``torch.device`` or index) means a CUDA device."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.split(":", 1)[0] == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def check_index(device: Any) -> None:
    """Raise `SecondDeviceError` for any CUDA device but the first."""
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None and index > 0:
        raise SecondDeviceError(f"cuda:{index}")


def as_device(device: Any) -> torch.device:
    """Return ``cuda:0`` for whatever means the first CUDA device, else ``device`` itself."""
    if is_cuda(device):
        check_index(device)
        return torch.device("cuda", 0)
    return torch.device(device)
