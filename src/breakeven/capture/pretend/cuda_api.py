"""Stand-ins for ``torch.cuda`` and related modules on a machine without a GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda
import torch.cuda.nccl
import torch.cuda.profiler
import torch.utils._device

from breakeven.capture.record.device_map import CudaDevices
from breakeven.configure import Patches

# Properties of the fake device: an A100, whose features a script may query. No prediction uses
# these figures.
_PROPERTIES = {
    "name": "NVIDIA A100-SXM4-80GB", "major": 8, "minor": 0, "total_memory": 80 * 2**30,
    "multi_processor_count": 108, "max_threads_per_multi_processor": 2048, "warp_size": 32,
    "is_integrated": 0, "is_multi_gpu_board": 0, "gcnArchName": "",
    "regs_per_multiprocessor": 65536, "L2_cache_size": 40 * 2**20, "max_threads_per_block": 1024,
    "shared_memory_per_block": 48 * 2**10, "shared_memory_per_block_optin": 163 * 2**10,
    "shared_memory_per_multiprocessor": 164 * 2**10, "clock_rate": 1_410_000,
    "memory_clock_rate": 1_593_000, "memory_bus_width": 5120,
    "uuid": "00000000-0000-0000-0000-000000000000",
    **dict.fromkeys(("pci_bus_id", "pci_device_id", "pci_domain_id"), 0),
}  # fmt: skip
# The versions in torch 2.13's build.
_CUDA_VERSION, _CUDNN_VERSION = "13.0", 91_900


# Constant results of functions in torch.cuda, for any arguments.
_ANSWERS: dict[str, Any] = {
    "is_bf16_supported": True, "memory_allocated": 0, "max_memory_allocated": 0,
    "memory_reserved": 0, "max_memory_reserved": 0, "memory_stats": {}, "memory_summary": "",
    "initial_seed": 0, "get_arch_list": ["sm_80"], "utilization": 0,
    "mem_get_info": (_PROPERTIES["total_memory"],) * 2, "is_current_stream_capturing": False,
    "can_device_access_peer": False, "get_allocator_backend": "native",
    "get_per_process_memory_fraction": 1.0, "memory_snapshot": [], "get_sync_debug_mode": 0,
    "is_tf32_supported": True, "list_gpu_processes": "", "get_gencode_flags": "",
    "memory_stats_as_nested_dict": {}, "host_memory_stats": {},
    **dict.fromkeys(("temperature", "power_draw", "clock_rate", "memory_usage"), 0),
    **dict.fromkeys(("device_memory_used", "memory_cached", "max_memory_cached"), 0),
    **dict.fromkeys((
        "_lazy_init", "init", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all",
        "set_per_process_memory_fraction", "set_stream", "_sleep", "set_sync_debug_mode",
        "set_rng_state", "set_rng_state_all", "reset_accumulated_memory_stats",
        "reset_max_memory_cached", "cudart", "current_blas_handle",
    )),
}  # fmt: skip


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _answers(values: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    return {name: _answer(value) for name, value in values.items()}


class _Stream:
    """A stream that completes all work at once."""

    _cuda = CudaDevices()

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index = self._cuda.index_of(device)
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority
        self.cuda_stream = self.stream_id = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record(self)
        return event

    query = _answer(True)
    is_capturing = _answer(False)
    wait_event = wait_stream = _answer(None)


class _Event:
    """An event with a time stamp of the host's clock."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.record()

    def record(self, stream: Any = None) -> None:
        self._recorded_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed_time(self, end_event: _Event) -> float:
        # torch's unit here is the millisecond.
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    query = _answer(True)
    wait = _answer(None)


class _CurrentDevice:
    """``with torch.cuda.device(index)``: makes another device current inside."""

    _cuda = CudaDevices()

    def __init__(self, device: Any = None) -> None:
        self._index = self._cuda.index_of(device)
        self._before = self._cuda.current

    def __enter__(self) -> None:
        self._before, self._cuda.current = self._cuda.current, self._index

    def __exit__(self, *_: object) -> None:
        self._cuda.current = self._before


def patch_cuda_api(
    patches: Patches, *, is_available: bool, on_wait: Callable[[str], None] | None = None,
    cuda: CudaDevices | None = None,
) -> None:  # fmt: skip
    """Make ``torch.cuda`` answer for fake devices.

    Args:
        patches: Restores everything on exit.
        is_available: Result of ``torch.cuda.is_available()``.
        on_wait: Called with ``synchronize`` or ``empty_cache`` if the script waits explicitly.
        cuda: The fake devices; by default one device.
    """
    cuda = cuda or CudaDevices()
    before = dict(vars(torch.cuda))
    # torch caches its factories on first use of a device context: make it cache the originals.
    torch.utils._device._device_constructors()

    def wait(kind: str) -> Callable[..., None]:
        return lambda *_, **__: None if on_wait is None else on_wait(kind)

    def properties(device: Any = None) -> SimpleNamespace:
        cuda.index_of(device)
        return SimpleNamespace(**_PROPERTIES)

    def capability(device: Any = None) -> tuple[int, int]:
        found = properties(device)
        return (found.major, found.minor)

    def choose(device: Any = None) -> None:
        cuda.current = cuda.index_of(device)

    def current() -> int:
        return cuda.current

    # These are classes, since scripts may use them in `isinstance`.
    stream = type("Stream", (_Stream,), {"_cuda": cuda})
    current_device = type("device", (_CurrentDevice,), {"_cuda": cuda})
    devices = {"is_available": is_available, "device_count": is_available * cuda.num_devices}
    stand_ins: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            **_answers(_ANSWERS | devices | {"is_initialized": is_available}),
            "synchronize": wait("synchronize"),
            "empty_cache": wait("empty_cache"),
            "set_device": choose,
            "current_device": current,
            "device": current_device,
            "device_of": lambda tensor: current_device(tensor.get_device()),
            "get_device_properties": properties,
            "get_device_name": lambda device=None: properties(device).name,
            "get_device_capability": capability,
            "get_rng_state": lambda device=0: torch.get_rng_state(),
            "get_rng_state_all": lambda: [torch.get_rng_state()],
            "Stream": stream,
            "Event": _Event,
            "current_stream": stream,
            "default_stream": stream,
        },
        torch.cuda.nvtx: _answers(
            dict.fromkeys(
                (
                    "range_push",
                    "range_pop",
                    "range_start",
                    "range_end",
                    "mark",
                )
            )
        ),
        torch.cuda.nccl: _answers({"version": (2, 27, 7)}),
        torch.cuda.profiler: _answers(dict.fromkeys(("start", "stop"))),
        torch.cuda.memory: _answers(dict.fromkeys(("_record_memory_history", "_dump_snapshot"))),
        torch.backends.cudnn: _answers({"is_acceptable": False}),
        torch.accelerator: {
            **_answers(devices | {"get_memory_info": _ANSWERS["mem_get_info"]}),
            "empty_cache": wait("empty_cache"),
            "current_accelerator": _answer(torch.device("cuda") if is_available else None),
            "synchronize": wait("synchronize"),
            "current_stream": stream,
            "current_device_index": current,
            "current_device_idx": current,
            "device_index": current_device,
            "set_device_index": choose,
            "set_device_idx": choose,
        },
    }
    if is_available:
        stand_ins[torch.version] = {"cuda": _CUDA_VERSION}
        stand_ins[torch.backends.cudnn] |= _answers({
            "version": _CUDNN_VERSION, "is_available": True,
        })  # fmt: skip
        stand_ins[torch.backends.cuda] = _answers({"is_built": True})
    for module, named in stand_ins.items():
        for name, stand_in in named.items():
            if hasattr(module, name):  # some versions of torch.accelerator lack some names
                patches.replace(module, name, stand_in)
    hide_other_gpus(patches)
    _answer_by_other_names(patches, before)


def hide_other_gpus(patches: Patches) -> None:
    """Hide Apple's and Intel's GPUs from torch, which no environment variable hides."""
    patches.replace(torch.backends.mps, "is_available", lambda: False)
    patches.replace(torch.xpu, "is_available", lambda: False)
    patches.replace(torch.xpu, "device_count", lambda: 0)


# Captured graphs are not queries.
_LEFT_OUT = ("torch.cuda.graphs",)


def _answer_by_other_names(patches: Patches, before: dict[str, Any]) -> None:
    """Replace the same functions in submodules: ``torch.cuda.memory.memory_allocated``.

    Args:
        patches: Already replaces them in ``torch.cuda``; restores everything.
        before: Contents of ``torch.cuda`` before those replacements.
    """
    answered = {
        id(before[name]): value
        for name, value in vars(torch.cuda).items()
        if name in before and before[name] is not value
    }
    for module_name, module in sys.modules.copy().items():
        if module_name.startswith("torch.cuda.") and not module_name.startswith(_LEFT_OUT):
            for name, value in list(vars(module).items()):
                if id(value) in answered:
                    patches.replace(module, name, answered[id(value)])
