"""``nn.DataParallel`` on a single GPU: it moves the batch, and calls the module as it is."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.nn.parallel import _functions

from breakeven.capture._patching import Patches


def patch_data_parallel(patches: Patches) -> None:
    """Let it move batches without the C++ that a torch built without CUDA lacks."""
    patches.replace(_functions.Scatter, "forward", staticmethod(_scatter))
    patches.replace(torch._C, "_gather", _gather)


def bypass_data_parallel(patches: Patches) -> None:
    """Let it find no device, as on a machine without one: then it moves nothing."""
    # `torch.nn.parallel.data_parallel` is the function, which hides its module.
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    patches.replace(module, "_get_available_device_type", lambda: None)


def _scatter(
    ctx: Any, devices: Any, chunk_sizes: Any, dim: int, batch: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    ctx.dim = dim
    ctx.input_device = batch.get_device()
    # One of several chunks on several devices: on one device a view of all.
    return (batch.view_as(batch).to("cuda", non_blocking=True),)


def _gather(tensors: Any, dim: int, *_: Any) -> torch.Tensor:
    return torch.cat(list(tensors), dim)
