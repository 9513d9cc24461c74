"""``nn.DataParallel`` on fake GPUs, and one process of a distributed job without the others.

Collectives return at once with this process's own data, and wait for no other process.
`DistributedDataParallel` runs the step of its one GPU. It exchanges no gradients, but the recorder
notes the buckets that it would exchange.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.cuda.nccl
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel, _functions
from torch.utils._pytree import tree_leaves

from breakeven.configure import Patches

# Properties that `DistributedDataParallel` checks before it exchanges gradients and buffers, each
# with the attribute that keeps the script's own setting.
_EXCHANGES = {
    "require_backward_grad_sync": "_wants_gradients",
    "require_forward_param_sync": "_wants_buffers",
}
# Variables that `torchrun` sets for the only process of a job.
_TORCHRUN = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
}  # fmt: skip
# What shards a model: its module, its name, and the function that a script calls for it. A script
# imports the module before it joins. `fully_shard` and tensor parallelism need a device mesh.
_SHARDING = (
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "__init__"),
    ("torch.distributed.optim", "ZeroRedundancyOptimizer", "__init__"),
    ("torch.distributed.device_mesh", "DeviceMesh", "__init__"),
    ("deepspeed", "DeepSpeed", "initialize"),
)
# Hooks that halve the gradients that are exchanged.
_HALVING = ("fp16_compress_hook", "bf16_compress_hook")


class ShardedModelError(NotImplementedError):
    """The script shards its model over processes, so one process shows only its own part."""


class _FirstOfOne(os._Environ):  # type: ignore[type-arg]
    """The environment of a script that ``torchrun`` would start as the only process.

    Only a plain read finds what is not set: a script that asks first trains without a group.
    """

    def __getitem__(self, key: Any) -> Any:
        if key in _TORCHRUN and key not in self:
            return _TORCHRUN[key]
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        return key in iter(self) if key in _TORCHRUN else super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key, default) if key in self else default

    def pop(self, key: Any, *default: Any, **named: Any) -> Any:
        # Its own `pop` reads a missing name, and then cannot delete it.
        return (super() if key in self else UserDict[Any, Any]()).pop(key, *default, **named)


def offer_torchrun_variables() -> None:
    """Let the script read variables of ``torchrun`` that are missing; this cannot be undone."""
    os.environ.__class__ = _FirstOfOne


def patch_process_group(
    patches: Patches, *, is_fake: bool = False,
    on_group: Callable[[int], None] = lambda _: None,
    on_collective: Callable[..., None] = lambda *_, **__: None,
) -> None:  # fmt: skip
    """Make ``init_process_group`` succeed at once, with any backend and world size.

    Args:
        patches: Restores everything on exit.
        is_fake: Whether modules are on a fake GPU; otherwise they are on the CPU.
        on_group: Called with the number of processes when the script joins a group.
        on_collective: Called with kind and bytes of what `DistributedDataParallel` and
            `SyncBatchNorm` would exchange on GPUs, and ``is_bucket=True`` for gradients.
    """
    if not dist.is_available():
        return
    asked_backend = ""

    def initialize(
        backend: Any = None, init_method: str | None = None, timeout: Any = None,
        world_size: int = -1, rank: int = -1, store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        nonlocal asked_backend
        _refuse_shards(patches)
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
    _patch_ddp(patches, is_fake, on_collective)

    # It normalizes over the samples of all processes, and only on GPUs.
    def normalize(module: nn.SyncBatchNorm, x: torch.Tensor) -> torch.Tensor:
        output = _BatchNorm.forward(module, x)
        if is_fake and module.training and dist.is_initialized():
            channel_bytes = 4 * module.num_features
            # Means, variances and the number of samples; then the sums of the backward pass.
            on_collective("all_gather", 2 * channel_bytes + 4)
            if output.requires_grad:
                output.register_hook(lambda _: on_collective("all_reduce", 2 * channel_bytes))
        return output

    patches.replace(nn.SyncBatchNorm, "forward", normalize)
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
    try:
        return int(os.environ[name])
    except KeyError:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: "
            f"environment variable {name} expected, but not set"
        ) from None


def _refuse_shards(patches: Patches) -> None:
    """Refuse whatever would shard a model over the processes of the group that starts."""

    def refuse(name: str, *_: Any, **__: Any) -> NoReturn:
        raise ShardedModelError(f"{name} shards the model over processes")

    frame = sys._getframe(1)
    while frame := frame.f_back:
        if str(frame.f_globals.get("__name__")).startswith("deepspeed"):
            refuse("DeepSpeed")
    for module, name, entry in _SHARDING:
        if module in sys.modules:
            owner: Any = sys.modules[module]
            owner = getattr(owner, name) if entry == "__init__" else owner
            patches.replace(owner, entry, staticmethod(functools.partial(refuse, name)))


def _leave_group() -> None:
    if dist.is_initialized() and distributed_c10d.get_backend() == "fake":
        distributed_c10d.destroy_process_group()


def _patch_ddp(patches: Patches, is_fake: bool, on_collective: Callable[..., None]) -> None:
    initialize_original = DistributedDataParallel.__init__
    forward_original = DistributedDataParallel.forward

    @functools.wraps(initialize_original)
    def initialize(
        parallel: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        if device_ids:
            # The CPU leaves no choice of device.
            device_ids = [0] if is_fake else None
        if output_device is not None:
            output_device = 0 if is_fake else None
        initialize_original(parallel, module, device_ids, output_device, *args, **kwargs)
        if is_fake:
            arrived = parallel.__dict__["_arrived"] = dict[int, Any]()
            for index, parameter in enumerate(parallel._module_parameters):

                def note(_: torch.Tensor, index: int = index) -> None:
                    arrived.setdefault(index)

                parameter.register_post_accumulate_grad_hook(note)

    patches.replace(DistributedDataParallel, "__init__", initialize)
    for name, wanted in _EXCHANGES.items():

        def keep(parallel: Any, value: bool, wanted: str = wanted) -> None:
            parallel.__dict__[wanted] = value

        patches.replace(DistributedDataParallel, name, property(lambda _: False, keep))

    @contextmanager
    def no_sync(parallel: Any) -> Iterator[None]:
        wanted = _EXCHANGES["require_backward_grad_sync"]
        before, parallel.__dict__[wanted] = parallel.__dict__[wanted], False
        try:
            yield
        finally:
            parallel.__dict__[wanted] = before

    patches.replace(DistributedDataParallel, "no_sync", no_sync)
    if not is_fake:
        return

    @functools.wraps(forward_original)
    def forward(parallel: Any, *inputs: Any, **kwargs: Any) -> Any:
        state = parallel.__dict__
        if state["_wants_buffers"] and parallel.broadcast_buffers:
            num_bytes = sum(buffer.nbytes for buffer in parallel.buffers())
            if num_bytes:
                on_collective("broadcast", num_bytes)
        output = forward_original(parallel, *inputs, **kwargs)
        state["_wants_buffers"] = torch.is_grad_enabled() and state["_wants_gradients"]
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        followed = next((leaf for leaf in leaves if leaf.requires_grad), None)

        def note_buckets(_: torch.Tensor) -> None:
            backward = torch._C._current_graph_task_id()
            if state.get("_last_backward") != backward:  # one exchange for several forward passes
                state["_last_backward"] = backward
                for num_bytes in _bucket_bytes(parallel):
                    on_collective("all_reduce", num_bytes, is_bucket=True)

        if followed is not None and state["_wants_gradients"]:
            followed.register_hook(note_buckets)
        return output

    patches.replace(DistributedDataParallel, "forward", forward)


def _bucket_bytes(parallel: Any) -> list[int]:
    """Return the bytes of the buckets in which `DistributedDataParallel` exchanges gradients.

    From the second backward pass on, they follow the order in which gradients arrived. With
    ``find_unused_parameters`` they stay in the order of the parameters.
    """
    parameters = list(parallel._module_parameters)
    if not parallel.find_unused_parameters or parallel.static_graph:
        order = dict.fromkeys((*parallel._arrived, *reversed(range(len(parameters)))))
        parameters = [parameters[index] for index in order]
    cap = parallel.bucket_bytes_cap
    is_default = parallel.bucket_bytes_cap_default
    c10d: Any = dist
    limits = [c10d._DEFAULT_FIRST_BUCKET_BYTES if is_default else cap, cap]
    buckets, _ = c10d._compute_bucket_assignment_by_size(parameters, limits)
    is_halved = any(getattr(hook, "__name__", "") in _HALVING for hook, _ in parallel._comm_hooks)
    sizes = [sum(parameters[index].nbytes for index in bucket) for bucket in buckets]
    return [size // 2 if is_halved else size for size in sizes]


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
