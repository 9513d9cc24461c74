"""The GPU of this machine, by whichever of torch's backends drives it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from breakeven.processor import cpu_name


def gpu_here() -> str:
    """Return torch's type of the GPU that is here: ``cuda``, ``xpu`` or ``mps``; empty for none.

    A GPU of AMD is ``cuda`` to torch. To ask for some kinds is to begin to use them, after which a
    process cannot be forked.
    """
    if torch.cuda.is_available():
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else ""


def gpu_name(kind: str) -> str:
    """Return what the GPU is called.

    Args:
        kind: torch's type of it.
    """
    if kind == "mps":  # a part of the processor, and called like it
        return f"{cpu_name()} GPU"
    name = torch.get_device_module(kind).get_device_name()
    return f"{name} (ROCm)" if kind == "cuda" and torch.version.hip else name


def gpu_peak_bytes(kind: str) -> int:
    """Return the most of its memory that tensors took so far; for Apple's, what they take now.

    Args:
        kind: torch's type of it.
    """
    if kind == "mps":
        return torch.mps.current_allocated_memory()
    return torch.get_device_module(kind).max_memory_allocated()


def is_on(kind: str, tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether any of the tensors lies on the GPU.

    Args:
        kind: torch's type of it.
        tensors: Any.
    """
    return any(tensor.device.type == kind for tensor in tensors)
