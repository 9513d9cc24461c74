"""The GPU of this machine, whichever of torch's backends drives it, and facts of the process."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from msgspec.structs import replace

from breakeven.processor import cpu_name, num_cores
from breakeven.trace import RunFacts


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


# Values that are looked at: some 10 ms of work.
_MAX_VALUES = 4_000_000


def with_machine_facts(facts: RunFacts, parameters: Iterable[torch.Tensor]) -> RunFacts:
    """Return ``facts`` with those of the process and of the optimizers' parameters.

    Args:
        facts: What the recorded steps tell.
        parameters: What the optimizers update, each once.
    """
    known = list(parameters)
    return replace(
        facts,
        subnormal_fraction=subnormal_fraction(known),
        num_parameter_tensors=len(known),
        num_threads=torch.get_num_threads(),
        num_interop_threads=torch.get_num_interop_threads(),
        num_cores=num_cores(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        has_cuda_build=torch._C._has_cuda,
        has_nvidia_device=Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None,
    )


def subnormal_fraction(parameters: Iterable[torch.Tensor]) -> float:
    """Return the part of the values of parameters and their gradients that are subnormal.

    Of a large model the first four million values count.
    """
    num_values = num_subnormal = 0
    for parameter in parameters:
        for tensor in (parameter.detach(), parameter.grad):
            wanted = _MAX_VALUES - num_values
            if tensor is None or tensor.is_sparse or not tensor.is_floating_point() or wanted <= 0:
                continue
            values = tensor.detach().reshape(-1)[:wanted].abs()
            tiny = torch.finfo(values.dtype).tiny
            num_values += values.numel()
            num_subnormal += int(((values > 0) & (values < tiny)).sum())
    return num_subnormal / num_values if num_values else 0.0
