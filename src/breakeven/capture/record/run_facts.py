"""What is known of the process, the machine and the numbers when a recording ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from msgspec.structs import replace

from breakeven.processor import num_cores
from breakeven.trace import RunFacts

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
