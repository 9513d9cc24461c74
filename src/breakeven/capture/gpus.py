"""The GPU of this machine, whichever of torch's backends drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from breakeven.processor import cpu_name


def gpu_here() -> str:
    """Return torch's type of the GPU that is here: ``cuda``, ``xpu`` or ``mps``; empty for none.

    A GPU of AMD is ``cuda`` to torch. To ask for some kinds is to begin to use them, after which a
    process cannot be forked.
    """
    return "cuda" if torch.cuda.is_available() else other_gpu_here()


def other_gpu_here() -> str:
    """Return ``xpu`` or ``mps``, which no variable of the environment hides; empty for neither."""
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else ""


def gpu_name(device: torch.device) -> str:
    """Return what the GPU is called.

    Args:
        device: The current one of its type where it has no index.
    """
    kind = device.type
    if kind == "mps":  # a part of the processor, and called like it
        return f"{cpu_name()} GPU"
    name = torch.get_device_module(kind).get_device_name(device.index)
    return f"{name} (ROCm)" if kind == "cuda" and torch.version.hip else name


def gpu_peak_bytes(device: torch.device) -> int:
    """Return the most of its memory that tensors took so far; for Apple's, what they take now.

    Args:
        device: The current one of its type where it has no index.
    """
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return torch.get_device_module(device.type).max_memory_allocated(device.index)


def gpu_with_most(kind: str, tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """Return which GPU most numbers of the tensors lie on, or None if none does.

    Args:
        kind: torch's type of it.
        tensors: Any.
    """
    counts: Counter[torch.device] = Counter()
    for tensor in tensors:
        if tensor.device.type == kind:
            counts[tensor.device] += tensor.numel()
    return counts.most_common(1)[0][0] if counts else None
