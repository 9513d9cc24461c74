"""CUDA devices that are not there: for the traced run.

Every tensor really lives on the CPU; `DeviceMap` knows which of them a GPU would hold. Properties
and methods of ``torch.Tensor`` are replaced on the class, so that torch's own Python (optimizers,
clipping, attention) takes its CUDA path too, in every thread and at every depth of call. A
``TorchFunctionMode`` alone is left out of calls within calls; here it only tells the recorder
whether the outermost call works on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

from breakeven.capture.pretend.autocast import patch_autocast_policy
from breakeven.capture.pretend.calls_on_device import (
    CallsOnDevice,
    patch_compiled_calls,
    patch_torchscript,
)
from breakeven.capture.pretend.composites import patch_composites
from breakeven.capture.pretend.creation import patch_creation
from breakeven.capture.pretend.cuda_api import patch_cuda_api
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.data_parallel import keep_to_one_device, patch_data_parallel
from breakeven.capture.pretend.device_functions import patch_legacy_types
from breakeven.capture.pretend.process_group import patch_process_group
from breakeven.capture.pretend.redirect import disable_compile, patch_generator, patch_module_to
from breakeven.capture.pretend.serialization import patch_serialization
from breakeven.capture.pretend.transfer import (
    is_uninitialized,
    patch_lazy_parameters,
    place_later,
    seen_by_subclasses,
    transfer,
)
from breakeven.capture.record.cuda_devices import CudaDevices, is_cuda
from breakeven.capture.record.device_map import DEVICE, HOST
from breakeven.capture.record.modes import Watch
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches


class pretended_cuda(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, torch behaves as on a machine with GPUs, and ``recorder`` sees all of it.

    Args:
        recorder: Says how many GPUs there are.
        on_compile: Called when the script asks for ``torch.compile``.
        is_lazy: See nothing before the script names a GPU.
        graphs: Is told of updates, which a graph may repeat.
    """

    def __init__(
        self, recorder: StepRecorder, on_compile: Callable[[], None], *, is_lazy: bool = False,
        graphs: CudaGraphs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._graphs = graphs or CudaGraphs()
        self._recorder = recorder
        self._on_compile = on_compile
        self._is_lazy = is_lazy

    def __enter__(self) -> pretended_cuda:
        super().__enter__()
        recorder = self._recorder
        patch_cuda_api(self, is_available=True, on_wait=recorder.record_sync, cuda=recorder.cuda)
        self.enter_context(self._graphs.patch(recorder))
        self._patch_properties(recorder)
        self._patch_transfers(recorder)
        patch_creation(self, recorder)
        self._patch_readers(recorder)
        self._patch_grouping(recorder)
        self._patch_autocast(recorder)
        patch_autocast_policy(self)
        patch_lazy_parameters(self, recorder.devices)
        patch_composites(self, recorder)
        patch_serialization(self, recorder.devices, recorder.cuda)
        patch_legacy_types(self)
        patch_data_parallel(self)
        if recorder.cuda.num_devices == 1:
            keep_to_one_device(self, recorder.one_gpu.note_split)
            patch_process_group(self, is_pretended=True, on_group=recorder.one_gpu.note_processes)
        patch_torchscript(self)
        patch_compiled_calls(self, recorder)
        patch_generator(self, recorder.cuda.name_of)
        disable_compile(self, self._on_compile)
        self._patch_device_context(recorder)
        calls = CallsOnDevice(recorder)
        calls.patch_backward(self)
        recorder.watch = self.enter_context(Watch(recorder, calls))
        if not self._is_lazy:
            recorder.start_watching()
        return self

    def _patch_device_context(self, recorder: StepRecorder) -> None:
        """Begin to watch where the script makes a device the one that all is created on."""
        enter = DeviceContext.__enter__

        def enter_context(context: Any) -> Any:
            if is_cuda(context.device):
                recorder.start_watching()
            return enter(context)

        self.replace(DeviceContext, "__enter__", enter_context)

    def _patch_properties(self, recorder: StepRecorder) -> None:
        is_on_device, device_of = recorder.devices.is_on_device, recorder.devices.device_of
        host = torch.device("cpu")
        by_name = {HOST: host} | {
            f"cuda:{index}": torch.device("cuda", index)
            for index in range(recorder.cuda.num_devices)
        }
        real = torch._C.TensorBase.device.__get__

        def get_device(tensor: torch.Tensor) -> torch.device:
            found = real(tensor)
            if found != host:  # meta tensors stay what they are
                return found
            return by_name[device_of(tensor)]

        properties = {
            "device": get_device,
            "is_cuda": is_on_device,
            "is_cpu": lambda tensor: get_device(tensor) == host,
        }
        for name, getter in properties.items():
            self.replace(torch.Tensor, name, property(getter))
        indices = {name: -1 if name == HOST else device.index for name, device in by_name.items()}
        self.replace(torch.Tensor, "get_device", lambda tensor: indices[device_of(tensor)])

    def _patch_transfers(self, recorder: StepRecorder) -> None:
        original_to = torch.Tensor.to
        devices = recorder.devices
        # `batch.to(device)` is how a script moves what it has, whatever its device is called.
        by_name = DEVICE if recorder.is_moving else HOST

        @seen_by_subclasses
        @functools.wraps(original_to)
        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            return move(tensor, args, kwargs, by_name)

        def move(
            tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], host: str
        ) -> torch.Tensor:
            target, options = _split_device(tensor, args, kwargs, recorder.cuda)
            if target is not None and target.type == "cuda":
                recorder.start_watching()
            if target is not None and target.type not in ("cpu", "cuda"):
                return original_to(tensor, *args, **kwargs)
            where = devices.device_of(tensor)
            if target is not None:
                where = str(target) if target.type == "cuda" else host
            if is_uninitialized(tensor):
                place_later(tensor, where)
                return tensor
            if devices.device_of(tensor) != where:
                return transfer(recorder, original_to, tensor, where, options)
            # The real tensor is on the CPU already, so what is left is dtype and format.
            return original_to(tensor, **options) if options else tensor

        def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any):
            wanted = recorder.cuda.as_device("cuda" if device is None else device)
            return to(tensor, wanted, non_blocking=non_blocking)

        @seen_by_subclasses
        @functools.wraps(torch.Tensor.cpu)
        def cpu(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
            return move(tensor, ("cpu",), {}, HOST)

        def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
            if devices.is_pinned(tensor):
                return tensor
            pinned = tensor.clone()
            devices.pin(pinned)
            return pinned

        for name, method in {
            "to": to, "type_as": to, "cuda": cuda, "cpu": cpu, "pin_memory": pin_memory,
            "is_pinned": lambda tensor, *_: devices.is_pinned(tensor),
            "record_stream": lambda *_: None,
        }.items():  # fmt: skip
            self.replace(torch.Tensor, name, method)
        patch_module_to(self, recorder.cuda.as_device)

    def _patch_readers(self, recorder: StepRecorder) -> None:
        devices = recorder.devices
        originals = {
            name: getattr(torch.Tensor, name)
            for name in ("numpy", "__array__", "tolist", "__repr__", "__deepcopy__")
        }

        def refuse_on_device(name: str) -> Callable[..., Any]:
            def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if recorder.is_moving and devices.is_on_device(tensor):
                    recorder.record_read("numpy", tensor)
                elif devices.is_on_device(tensor):
                    recorder.refuse_array(tensor)
                # Under a function mode torch finds this function again, by its name.
                with recorder.paused():
                    return originals[name](tensor, *args, **kwargs)

            return read

        def wait_and_read(name: str, kind: str) -> Callable[..., Any]:
            def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if devices.is_on_device(tensor):
                    recorder.record_read(kind, tensor)
                with recorder.paused():
                    return originals[name](tensor, *args, **kwargs)

            return read

        def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
            copied = originals["__deepcopy__"](tensor, memo)
            devices.place(copied, devices.device_of(tensor))
            return copied

        self.replace(torch.Tensor, "numpy", refuse_on_device("numpy"))
        self.replace(torch.Tensor, "__array__", refuse_on_device("__array__"))
        self.replace(torch.Tensor, "tolist", wait_and_read("tolist", "tolist"))
        self.replace(torch.Tensor, "__repr__", wait_and_read("__repr__", "print"))
        self.replace(torch.Tensor, "__deepcopy__", deepcopy)

    def _patch_grouping(self, recorder: StepRecorder) -> None:
        """Let clipping and optimizers, which group tensors in C++, see the pretended device."""
        original = torch._C._group_tensors_by_device_and_dtype

        def group(tensor_lists: Any, with_indices: bool = False) -> Any:
            placed: dict[Any, Any] = {}
            for (_, dtype), (lists, indices) in original(tensor_lists, True).items():
                # The first list tells: step counters stay on the host.
                devices = [tensor.device for tensor in lists[0] if tensor is not None]
                for device in dict.fromkeys(devices):
                    own = [at for at, found in enumerate(devices) if found == device]
                    parts = [[given[at] for at in own] if given else [] for given in lists]
                    placed[(device, dtype)] = (parts, [indices[at] for at in own])
            return placed

        self.replace(torch._C, "_group_tensors_by_device_and_dtype", group)

    def _patch_autocast(self, recorder: StepRecorder) -> None:
        """Let autocast regions for CUDA cast on the CPU, to the same dtype."""
        original = torch.autocast.__init__
        is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

        def is_autocast_enabled(device_type: str = "cuda") -> bool:
            return is_enabled("cpu" if device_type == "cuda" else device_type)

        def get_autocast_dtype(device_type: str = "cuda") -> torch.dtype:
            if device_type == "cuda" and is_enabled("cpu"):
                device_type = "cpu"
            return get_dtype(device_type)

        def initialize(
            self: Any, device_type: str, dtype: Any = None, enabled: bool = True,
            cache_enabled: bool | None = None,
        ) -> None:  # fmt: skip
            if device_type == "cuda":
                device_type = "cpu"
                dtype = dtype or get_dtype("cuda")
                if enabled:
                    recorder.autocast_dtype = str(dtype).removeprefix("torch.")
            original(self, device_type, dtype, enabled, cache_enabled)

        self.replace(torch.autocast, "__init__", initialize)
        self.replace(torch, "is_autocast_enabled", is_autocast_enabled)
        self.replace(torch, "get_autocast_dtype", get_autocast_dtype)
        self.replace(torch, "get_autocast_gpu_dtype", get_autocast_dtype)


def _split_device(
    tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], cuda: CudaDevices
) -> tuple[torch.device | None, dict[str, Any]]:
    """Take the device out of the arguments of ``Tensor.to``; the rest comes back as keywords."""
    options = dict(kwargs)
    target = options.pop("device", None)
    other = options.pop("other", None)
    rest = list(args)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    elif rest and not isinstance(rest[0], torch.dtype):
        target = rest.pop(0)
    if other is not None:
        target, options["dtype"] = other.device, other.dtype
    names = ("non_blocking", "copy") if other is not None else ("dtype", "non_blocking", "copy")
    options.update(zip(names, rest, strict=False))
    if options.get("dtype") in (None, tensor.dtype):
        options.pop("dtype", None)
    return (None if target is None else cuda.as_device(target)), options
