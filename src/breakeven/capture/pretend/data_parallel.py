"""``nn.DataParallel`` on pretended GPUs: it splits the batch and copies the module to each."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.cuda.nccl
from torch.nn.parallel import _functions

from breakeven.configure import Patches


def patch_data_parallel(patches: Patches) -> None:
    """Let it work without the C++ that a torch built without CUDA lacks.

    Its replicas run in turn rather than in threads of their own, which modes of torch do not
    reach; what they compute is the same.
    """
    patches.replace(_functions.Scatter, "forward", staticmethod(_scatter))
    patches.replace(torch._C, "_broadcast_coalesced", _broadcast)
    patches.replace(torch._C, "_gather", _gather)
    patches.replace(torch.cuda.nccl, "is_available", lambda _: False)
    # `torch.nn.parallel.data_parallel` is the function, which hides its module.
    for name in ("torch.nn.parallel.data_parallel", "torch.nn.parallel"):
        patches.replace(importlib.import_module(name), "parallel_apply", _apply_in_turn)


def bypass_data_parallel(patches: Patches) -> None:
    """Let it find no device, as on a machine without one: then it moves nothing."""
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    patches.replace(module, "_get_available_device_type", lambda: None)


def keep_to_one_device(patches: Patches, on_split: Callable[[], None]) -> None:
    """Let it take the first device alone, whatever devices the script lists.

    A step is predicted on one GPU; that the script splits it over several has a rule of its own.

    Args:
        patches: Undo it.
        on_split: Called when the script lists several devices.
    """
    original = torch.nn.DataParallel.__init__

    @functools.wraps(original)
    def initialize(
        parallel: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        if device_ids is not None and len(device_ids) > 1:
            on_split()
        original(parallel, module, device_ids=[0], output_device=0, dim=dim)

    patches.replace(torch.nn.DataParallel, "__init__", initialize)


def _scatter(
    ctx: Any, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int,
    batch: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    ctx.dim = dim
    ctx.input_device = batch.get_device()
    if len(devices) == 1:  # one of several chunks on several devices: on one a view of all
        chunks: Sequence[torch.Tensor] = (batch.view_as(batch),)
    elif chunk_sizes is None:
        chunks = batch.chunk(len(devices), dim)
    else:
        chunks = batch.split(list(chunk_sizes), dim)
    return tuple(
        chunk.to(f"cuda:{device}", non_blocking=True)
        for chunk, device in zip(chunks, devices, strict=False)
    )


def _broadcast(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], _: int
) -> list[list[torch.Tensor]]:
    """Return the tensors on every device; on their own they share memory with the originals."""
    return [[tensor.detach().to(f"cuda:{device}") for tensor in tensors] for device in devices]


def _gather(
    tensors: Sequence[torch.Tensor], dim: int, destination: int | None, *_: Any
) -> torch.Tensor:
    is_host = destination is not None and destination < 0
    device = "cpu" if is_host else "cuda" if destination is None else f"cuda:{destination}"
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _apply_in_turn(
    modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Sequence[Any] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    results: list[Any] = []
    for position, (module, arguments) in enumerate(zip(modules, inputs, strict=True)):
        keywords = {} if kwargs_tup is None else kwargs_tup[position]
        device = None if devices is None else devices[position]
        arguments = arguments if isinstance(arguments, (list, tuple)) else (arguments,)
        with torch.cuda.device(device):
            results.append(module(*arguments, **keywords))
    return results
