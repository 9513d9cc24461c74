"""The GPU of this machine, with any of torch's backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from breakeven.processor import cpu_name


def gpu_here() -> str:
    """Return torch's type of this machine's GPU: ``cuda``, ``xpu`` or ``mps``; empty without one.

    torch calls an AMD GPU ``cuda``. Querying some types initializes them; a process cannot fork
    after that.
    """
    return "cuda" if torch.cuda.is_available() else other_gpu_here()


def other_gpu_here() -> str:
    """Return ``xpu`` or ``mps``, which no environment variable hides; empty without either."""
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else ""


def gpu_name(device: torch.device) -> str:
    """Return the name of the GPU.

    Args:
        device: The GPU; without an index, the current one of its type.
    """
    kind = device.type
    if kind == "mps":  # part of the processor, whose name it shares
        return f"{cpu_name()} GPU"
    name = torch.get_device_module(kind).get_device_name(device.index)
    return f"{name} (ROCm)" if kind == "cuda" and torch.version.hip else name


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID by which NVML knows an NVIDIA GPU; empty for other GPUs.

    Args:
        device: The GPU; without an index, the current one of its type.
    """
    if device.type != "cuda" or torch.version.hip:
        return ""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def gpu_peak_bytes(device: torch.device) -> int:
    """Return the peak memory of tensors so far; on Apple's GPUs, their current memory.

    Args:
        device: The GPU; without an index, the current one of its type.
    """
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return torch.get_device_module(device.type).max_memory_allocated(device.index)


def gpu_with_most(kind: str, tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """Return the GPU that holds most elements of the tensors, or None if no GPU holds any.

    Args:
        kind: torch's type of the GPU.
        tensors: Tensors on any devices.
    """
    counts: Counter[torch.device] = Counter()
    for tensor in tensors:
        if tensor.device.type == kind:
            counts[tensor.device] += tensor.numel()
    return counts.most_common(1)[0][0] if counts else None
