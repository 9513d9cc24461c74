"""``nn.DataParallel`` on fake GPUs, and one process of a distributed job without the others.

Collectives return at once with this process's own data, and wait for no other process.
`DistributedDataParallel` runs the step of its one GPU, and exchanges no gradients.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel, _functions

from breakeven.configure import Patches

# Properties that `DistributedDataParallel` checks before it exchanges gradients and buffers.
_EXCHANGES = ("require_backward_grad_sync", "require_forward_param_sync")


def patch_process_group(
    patches: Patches, *, is_fake: bool = False,
    on_group: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Make ``init_process_group`` succeed at once, with any backend and world size.

    Args:
        patches: Restores everything on exit.
        is_fake: Whether modules are on a fake GPU; otherwise they are on the CPU.
        on_group: Called with the number of processes when the script joins a group.
    """
    if not dist.is_available():
        return
    asked_backend = ""

    def initialize(
        backend: Any = None, init_method: str | None = None, timeout: Any = None,
        world_size: int = -1, rank: int = -1, store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        nonlocal asked_backend
        # The import registers the backend.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        own = rank if rank >= 0 else _from_environment("RANK")
        num_processes = world_size if world_size > 0 else _from_environment("WORLD_SIZE")
        original_initialize("fake", store=FakeStore(), rank=own, world_size=num_processes)
        asked_backend = str(backend or ("nccl" if is_fake else "gloo"))
        on_group(num_processes)

    original_initialize = dist.init_process_group
    for owner in (dist, distributed_c10d):
        patches.replace(owner, "init_process_group", initialize)
    original_new = dist.new_group

    @functools.wraps(original_new)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **__: Any):
        return original_new(ranks)

    patches.replace(dist, "new_group", new_group)
    patches.replace(dist, "get_backend", lambda group=None: asked_backend)
    patches.replace(dist, "is_nccl_available", lambda: True)
    for name in ("barrier", "monitored_barrier"):
        patches.replace(dist, name, lambda *_, **__: None)
    patches.callback(_leave_group)
    _patch_ddp(patches, is_fake=is_fake)
    # It normalizes over the samples of all processes, and only on GPUs.
    patches.replace(nn.SyncBatchNorm, "forward", _BatchNorm.forward)
    handle = "_passing_sync_batchnorm_handle"
    patches.replace(DistributedDataParallel, handle, lambda *_: None)
    # Get the function, which hides its module.
    spawn: Any = vars(torch.multiprocessing)["spawn"]
    patches.replace(torch.multiprocessing, "spawn", _call_first(spawn))


def _from_environment(name: str) -> int:
    """Return a number that ``torchrun`` sets for each process.

    Raises:
        ValueError: The variable is not set; the message is torch's.
    """
    value = os.environ.get(name)
    if value is None:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: "
            f"environment variable {name} expected, but not set"
        )
    return int(value)


def _leave_group() -> None:
    if dist.is_initialized() and distributed_c10d.get_backend() == "fake":
        distributed_c10d.destroy_process_group()


def _patch_ddp(patches: Patches, *, is_fake: bool) -> None:
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def initialize(
        parallel: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        if device_ids:
            # The CPU leaves no choice of device.
            device_ids = [0] if is_fake else None
        if output_device is not None:
            output_device = 0 if is_fake else None
        original(parallel, module, device_ids, output_device, *args, **kwargs)

    patches.replace(DistributedDataParallel, "__init__", initialize)
    for name in _EXCHANGES:
        never = property(lambda _: False, lambda _, value: None)
        patches.replace(DistributedDataParallel, name, never)


def _call_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run the first of several spawned processes in this one, if the script waits for them."""

    @functools.wraps(original)
    def spawn(
        fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
        *others: Any, **named: Any,
    ) -> Any:  # fmt: skip
        if not join:
            return original(fn, args, nprocs, join, *others, **named)
        fn(0, *args)
        return None

    return spawn


def patch_data_parallel(patches: Patches) -> None:
    """Make DataParallel work without the C++ functions that a torch built without CUDA lacks.

    Its replicas run in turn, since torch's modes do not reach other threads; results are the same.
    """
    patches.replace(_functions.Scatter, "forward", staticmethod(_scatter))
    patches.replace(torch._C, "_broadcast_coalesced", _broadcast)
    patches.replace(torch._C, "_gather", _gather)
    patches.replace(torch.cuda.nccl, "is_available", lambda _: False)
    # `torch.nn.parallel.data_parallel` is the function, which hides its module.
    for name in ("torch.nn.parallel.data_parallel", "torch.nn.parallel"):
        patches.replace(importlib.import_module(name), "parallel_apply", _apply_in_turn)


def bypass_data_parallel(patches: Patches) -> None:
    """Make DataParallel find no device, as on a machine without one: then it moves nothing."""
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    patches.replace(module, "_get_available_device_type", lambda: None)


def keep_to_one_device(patches: Patches, on_split: Callable[[], None]) -> None:
    """Limit DataParallel to the first device, regardless of the script's list.

    A step is predicted on one GPU; a rule reports a script that splits it over several.

    Args:
        patches: Restores everything on exit.
        on_split: Called if the script lists several devices.
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
    if len(devices) == 1:  # several devices get chunks; one device gets a view of the batch
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
    """Return the tensors on every device; on their own device they share the original memory."""
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
