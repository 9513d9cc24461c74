"""One process of a training that is distributed over several, without the others.

Its collectives return at once with what this process has; what the others would have sent is not
waited for. `DistributedDataParallel` runs the step of its one GPU, and exchanges no gradients.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from breakeven.configure import Patches

# What `DistributedDataParallel` asks itself before it exchanges gradients, and buffers.
_EXCHANGES = ("require_backward_grad_sync", "require_forward_param_sync")


def patch_process_group(
    patches: Patches, *, is_pretended: bool = False,
    on_group: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Let ``init_process_group`` succeed at once, whatever its backend and its world.

    Args:
        patches: Undo it.
        is_pretended: Whether modules are on a pretended GPU; otherwise they are on the CPU.
        on_group: Called with the number of processes when the script joins them.
    """
    if not dist.is_available():
        return
    names = _Names()

    def initialize(
        backend: Any = None, init_method: str | None = None, timeout: Any = None,
        world_size: int = -1, rank: int = -1, store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        # Registers the backend.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        own = rank if rank >= 0 else _from_environment("RANK")
        num_processes = world_size if world_size > 0 else _from_environment("WORLD_SIZE")
        original_initialize("fake", store=FakeStore(), rank=own, world_size=num_processes)
        names.asked = str(backend or ("nccl" if is_pretended else "gloo"))
        on_group(num_processes)

    original_initialize = dist.init_process_group
    for owner in (dist, distributed_c10d):
        patches.replace(owner, "init_process_group", initialize)
    original_new = dist.new_group

    @functools.wraps(original_new)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **__: Any):
        return original_new(ranks)

    patches.replace(dist, "new_group", new_group)
    patches.replace(dist, "get_backend", lambda group=None: names.asked)
    patches.replace(dist, "is_nccl_available", lambda: True)
    for name in ("barrier", "monitored_barrier"):
        patches.replace(dist, name, lambda *_, **__: None)
    patches.callback(_leave_group)
    _patch_ddp(patches, is_pretended=is_pretended)
    # It normalizes over the samples of all processes, on GPUs alone.
    patches.replace(nn.SyncBatchNorm, "forward", _BatchNorm.forward)
    handle = "_passing_sync_batchnorm_handle"
    patches.replace(DistributedDataParallel, handle, lambda *_: None)
    # The function, which hides its module.
    spawn: Any = vars(torch.multiprocessing)["spawn"]
    patches.replace(torch.multiprocessing, "spawn", _call_first(spawn))


class _Names:
    """The backend that the script asked for."""

    asked = ""


def _from_environment(name: str) -> int:
    """Return a number that ``torchrun`` gives to each process.

    Raises:
        ValueError: There is none, in the words of torch.
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


def _patch_ddp(patches: Patches, *, is_pretended: bool) -> None:
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def initialize(
        parallel: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        if device_ids:
            # On the CPU there is nothing to choose.
            device_ids = [0] if is_pretended else None
        if output_device is not None:
            output_device = 0 if is_pretended else None
        original(parallel, module, device_ids, output_device, *args, **kwargs)

    patches.replace(DistributedDataParallel, "__init__", initialize)
    for name in _EXCHANGES:
        never = property(lambda _: False, lambda _, value: None)
        patches.replace(DistributedDataParallel, name, never)


def _call_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run the first of the processes that are waited for in this one."""

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
