"""Fake CUDA devices: for the traced run, a block, or a script run to its end.

Every tensor is on the CPU; `DeviceMap` holds the tensors that a GPU would hold. Properties and
methods of ``torch.Tensor`` are replaced on the class. So torch's own Python code (optimizers,
clipping, attention) takes its CUDA path too. That holds in every thread and at every call depth. A
``TorchFunctionMode`` alone misses calls within calls; here it only tells the recorder whether the
outermost call uses the device.

``python -P -m`` this module, with ``NUM_DEVICES SCRIPT [ARGUMENT ...]``, runs a script to its end.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from timeit import timeit
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
import torch.jit._builtins
import torch.utils._device
from torch.overrides import TorchFunctionMode

from breakeven.capture.pretend.attention import patch_attention
from breakeven.capture.pretend.composites import patch_composites
from breakeven.capture.pretend.cuda_api import patch_cuda_api
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.device_functions import patch_creation, patch_legacy_types
from breakeven.capture.pretend.parallel import (
    keep_to_one_device,
    patch_data_parallel,
    patch_process_group,
)
from breakeven.capture.pretend.stand_ins import (
    disable_compile,
    patch_autocast,
    patch_autocast_policy,
    patch_device,
    patch_generator,
    patch_serialization,
    patch_torchscript,
)
from breakeven.capture.pretend.transfer import patch_lazy_parameters, patch_transfers
from breakeven.capture.process.as_main import run_as_main
from breakeven.capture.record.device_map import HOST
from breakeven.capture.record.modes import Watch, undispatched
from breakeven.capture.record.operators import tensors_in
from breakeven.capture.record.recorder import StepRecorder, StrictDeviceChecker
from breakeven.configure import Patches
from breakeven.errors import UsageError
from breakeven.measure import own_time_ns
from breakeven.units import NS_PER_S


@contextmanager
def fake_cuda(
    recorder: StepRecorder, on_compile: Callable[[], None], *, is_lazy: bool = False,
    graphs: CudaGraphs | None = None,
) -> Iterator[None]:  # fmt: skip
    """Make torch behave inside as on a machine with GPUs, and let ``recorder`` record everything.

    Args:
        recorder: Holds the number of GPUs.
        on_compile: Called when the script calls ``torch.compile``.
        is_lazy: Start to watch only when the script names a GPU.
        graphs: Receives updates, which a graph may repeat.
    """
    with Patches() as patches:
        patch_cuda_api(patches, is_available=True, on_wait=recorder.record_sync, cuda=recorder.cuda)
        patches.enter_context((graphs or CudaGraphs()).patch(recorder))
        _patch_properties(patches, recorder)
        patch_transfers(patches, recorder)
        patch_creation(patches, recorder)
        _patch_readers(patches, recorder)
        _patch_grouping(patches, recorder)
        patch_autocast(patches, recorder)
        patch_autocast_policy(patches)
        patch_lazy_parameters(patches, recorder.devices)
        patch_composites(patches, recorder)
        patch_attention(patches, recorder)
        patch_serialization(patches, recorder.devices, recorder.cuda)
        patch_legacy_types(patches)
        patch_data_parallel(patches)
        if recorder.cuda.num_devices == 1:
            one_gpu = recorder.one_gpu
            keep_to_one_device(patches, one_gpu.note_split)
            patch_process_group(
                patches,
                is_fake=True,
                on_group=one_gpu.note_processes,
                on_collective=recorder.record_collective,
            )
        patch_torchscript(patches)
        patch_compiled_calls(patches, recorder)
        patch_device(patches)
        patch_generator(patches, recorder.cuda.name_of)
        disable_compile(patches, on_compile)
        calls = CallsOnDevice(recorder)
        calls.patch_backward(patches)
        recorder.watch = patches.enter_context(Watch(recorder, calls))
        if not is_lazy:
            recorder.start_watching()
        yield


def _patch_properties(patches: Patches, recorder: StepRecorder) -> None:
    is_on_device, device_of = recorder.devices.is_on_device, recorder.devices.device_of
    host = torch.device("cpu")
    by_name = {HOST: host} | {
        f"cuda:{index}": torch.device("cuda", index) for index in range(recorder.cuda.num_devices)
    }
    real = torch._C.TensorBase.device.__get__

    def get_device(tensor: torch.Tensor) -> torch.device:
        found = real(tensor)
        if found != host:  # a meta tensor keeps its device
            return found
        return by_name[device_of(tensor)]

    properties = {
        "device": get_device,
        "is_cuda": is_on_device,
        "is_cpu": lambda tensor: get_device(tensor) == host,
    }
    for name, getter in properties.items():
        patches.replace(torch.Tensor, name, property(recorder.unseen(getter)))
    indices = {name: -1 if name == HOST else device.index for name, device in by_name.items()}
    patches.replace(torch.Tensor, "get_device", lambda tensor: indices[device_of(tensor)])


def _patch_readers(patches: Patches, recorder: StepRecorder) -> None:
    devices = recorder.devices

    def refuse(tensor: torch.Tensor) -> None:
        if recorder.is_moving:
            recorder.record_read("numpy", tensor)
        else:
            recorder.refuse_array(tensor)

    def reading(name: str, note: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if devices.is_on_device(tensor):
                note(tensor)
            # Under a function mode, torch finds this function again by its name.
            with recorder.paused():
                return original(tensor, *args, **kwargs)

        return read

    for name, note in {
        "numpy": refuse, "__array__": refuse,
        "tolist": functools.partial(recorder.record_read, "tolist"),
        "__repr__": functools.partial(recorder.record_read, "print"),
    }.items():  # fmt: skip
        patches.replace(torch.Tensor, name, reading(name, note))
    original_deepcopy = torch.Tensor.__deepcopy__

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        copied = original_deepcopy(tensor, memo)
        devices.place(copied, devices.device_of(tensor))
        return copied

    patches.replace(torch.Tensor, "__deepcopy__", deepcopy)


def _patch_grouping(patches: Patches, recorder: StepRecorder) -> None:
    """Show the fake device to clipping and optimizers, which group tensors in C++."""
    original = torch._C._group_tensors_by_device_and_dtype

    def group(tensor_lists: Any, with_indices: bool = False) -> Any:
        placed: dict[Any, Any] = {}
        for (_, dtype), (lists, indices) in original(tensor_lists, True).items():
            # Use the first list: step counters stay on the host.
            devices = [tensor.device for tensor in lists[0] if tensor is not None]
            for device in dict.fromkeys(devices):
                own = [at for at, found in enumerate(devices) if found == device]
                parts = [[given[at] for at in own] if given else [] for given in lists]
                placed[(device, dtype)] = (parts, [indices[at] for at in own])
        return placed

    group = recorder.unseen(group)
    patches.replace(torch._C, "_group_tensors_by_device_and_dtype", group)


@contextmanager
def fake_gpus(num_devices: int = 1) -> Iterator[None]:
    """Make torch behave inside as on a machine with CUDA GPUs, regardless of this machine's.

    Tensors and results have fake devices, mixing devices raises as on real GPUs, and
    ``nn.DataParallel`` splits batches; the CPU computes everything. ``torch.compile`` is ignored.
    On exit torch is restored; tensors created inside become ordinary CPU tensors.

    Args:
        num_devices: Number of GPUs: ``cuda:0``, ``cuda:1`` and so on.

    Raises:
        UsageError: ``num_devices`` is less than one.
    """
    if num_devices < 1:
        raise UsageError(f"{num_devices} GPUs cannot be faked", hint="ask for 1 or more")
    with fake_cuda(StrictDeviceChecker(num_devices), lambda: None):
        yield


# How a call uses the value that it reads, by the name of torch's outermost function; ``item`` for
# all others.
_READINGS = {
    "__bool__": "bool", "__contains__": "bool", "is_nonzero": "bool", "allclose": "bool",
    "__float__": "float", "__complex__": "float", "__int__": "int", "__index__": "int",
    "__getitem__": "int", "__setitem__": "int", "__format__": "format",
}  # fmt: skip

_ASKING_FOR_A_GPU = frozenset({"device", "out_dtype", "pin_memory"})

# Time a call by reading this attribute repeatedly. Create the tensor before anything is faked.
_SAMPLE = torch.empty(())
_NUM_ENTRIES = 50

# Functions whose results are on several devices.
_SCATTERING = frozenset({"_pack_padded_sequence"})


class CallsOnDevice(TorchFunctionMode):
    """Tells the recorder whether the script's call has tensors on the device.

    If nothing is recorded and all tensors of a C++ call are on one device, the recorder is skipped:
    the device of the results is known. That is three to ten times as fast.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        # Overhead of one call of this mode.
        self._entry_ns = 0
        recorder.on_first_recording.append(self._time_entry)

    def _time_entry(self) -> None:
        with self:  # inside a call such as `backward`, torch disables the mode
            took_s = timeit(lambda: _SAMPLE.grad, number=_NUM_ENTRIES)
        self._entry_ns = round(took_s * NS_PER_S / _NUM_ENTRIES)

    def patch_backward(self, patches: Patches) -> None:
        """See calls of hooks, checkpoints and the script's own gradients too.

        They run inside the call of ``backward``, where torch disables the mode.
        """
        original = torch.autograd.graph._engine_run_backward
        recorder = self._recorder

        def run(*args: Any, **kwargs: Any) -> Any:
            if recorder.watch is None or not recorder.watch.is_on:
                return original(*args, **kwargs)
            here = recorder.here
            before, here.is_call_on_device = here.is_call_on_device, None
            try:
                with self:
                    return original(*args, **kwargs)
            finally:
                here.is_call_on_device = before

        for module in (torch.autograd.graph, torch.autograd):
            patches.replace(module, "_engine_run_backward", run)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if type(func) is MethodWrapperType:  # an attribute such as `x.shape`
            recorder.gap_own_ns += self._entry_ns
            return func(*args, **kwargs)
        if recorder.watch is not None and not recorder.watch.is_on:
            return func(*args, **kwargs)
        recorder.num_calls += 1
        if not (recorder.is_recording or recorder.is_moving) and _is_alone(func):
            place = self._common_place(args, kwargs)
            if place is not None:
                return self._run_alone(func, args, kwargs, place)
        here = recorder.here
        entered_ns = own_time_ns()
        before = here.is_call_on_device, here.reading
        here.reading = _READINGS.get(getattr(func, "__name__", ""), "")
        device = None
        if kwargs.get("device") is None:
            device = recorder.devices.first_device((*args, *kwargs.values()))
        here.is_call_on_device = device is not None
        if device is not None:
            here.last_device = device
        recorder.gap_own_ns += self._entry_ns + own_time_ns() - entered_ns
        try:
            return func(*args, **kwargs)
        finally:
            here.is_call_on_device, here.reading = before

    def _common_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the device of all tensors of a call; None if the recorder must run it.

        It must run it if devices differ or an argument requires a GPU. It must also if gradients
        flow: the recorded backward pass needs the tensors that the call saves.
        """
        if kwargs and not kwargs.keys().isdisjoint(_ASKING_FOR_A_GPU):
            return None
        device_of = self._recorder.devices.device_of
        is_graph_built = torch.is_grad_enabled()
        found = None
        for tensor in tensors_in((*args, *kwargs.values()) if kwargs else args):
            if is_graph_built and tensor.requires_grad:
                return None
            place = device_of(tensor)
            if found is not None and place != found:
                return None
            found = place
        return found or HOST

    def _run_alone(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
    ) -> Any:
        """Run a call without the recorder, and place its results on its tensors' device."""
        with undispatched():
            result = func(*args, **kwargs)
        if place != HOST:
            devices = self._recorder.devices
            self._recorder.num_device_events += 1
            for tensor in tensors_in((result,)):
                if not devices.is_known(tensor):
                    devices.place(tensor, place)
        return result


def _is_alone(func: Any) -> bool:
    """Return whether only torch's C++ code handles a call.

    Python code may name a device deeper in the call, and the script's own modes must see it.
    """
    return (
        type(func) is not FunctionType
        and func.__name__ not in _SCATTERING
        and torch.utils._device.CURRENT_DEVICE is None
        and torch._C._len_torch_dispatch_stack() == 1
    )


def patch_compiled_calls(patches: Patches, recorder: StepRecorder) -> None:
    """Place results of compiled functions and modules on the device of their arguments.

    TorchScript's own ``x.device`` is the real device.
    """
    for kind in (torch.jit.ScriptFunction, torch.ScriptMethod):
        patches.replace(kind, "__call__", _on_device_of_arguments(kind.__call__, recorder))


def _on_device_of_arguments(
    original: Callable[..., Any], recorder: StepRecorder
) -> Callable[..., Any]:
    def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        here = recorder.here
        before = here.is_call_on_device
        device = recorder.devices.first_device((*args, *kwargs.values()))
        if device is not None:
            here.is_call_on_device = True
            here.last_device = device
        try:
            return original(compiled, *args, **kwargs)
        finally:
            here.is_call_on_device = before

    return call


def main() -> None:
    """Run a script to its end, like ``python SCRIPT``."""
    with fake_gpus(int(sys.argv[1])):
        run_as_main(sys.argv[2], sys.argv[3:], is_module=False)


if __name__ == "__main__":
    main()
