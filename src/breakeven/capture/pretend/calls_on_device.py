"""Tell the recorder which calls of torch work on a device, and keep it out of those that do not."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
import torch.jit._builtins
import torch.utils._device
from torch.overrides import TorchFunctionMode

from breakeven.capture.record.device_map import HOST
from breakeven.capture.record.modes import undispatched
from breakeven.capture.record.operators import tensors_in
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches

# What a call does with the value that it reads, by the name of the outermost function of torch;
# ``item`` for all others.
_READINGS = {
    "__bool__": "bool", "__contains__": "bool", "is_nonzero": "bool", "allclose": "bool",
    "__float__": "float", "__complex__": "float", "__int__": "int", "__index__": "int",
    "__getitem__": "int", "__setitem__": "int", "__format__": "format",
}  # fmt: skip

_ASKING_FOR_A_GPU = frozenset({"device", "out_dtype", "pin_memory"})

# Results of these are in several places.
_SCATTERING = frozenset({"_pack_padded_sequence"})


class CallsOnDevice(TorchFunctionMode):
    """Tells the recorder whether the call that the script makes has tensors on the device.

    While nothing is recorded, a call into C++ whose tensors are all in one place is run without the
    recorder, since where its results are is clear: three to ten times as fast.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def patch_backward(self, patches: Patches) -> None:
        """See the calls of hooks, checkpoints and the script's own gradients too.

        They run within the call of ``backward``, and torch leaves a mode out of calls within calls.
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
        if type(func) is MethodWrapperType:  # an attribute: `x.shape`
            return func(*args, **kwargs)
        if recorder.watch is not None and not recorder.watch.is_on:
            return func(*args, **kwargs)
        if not (recorder.is_recording or recorder.is_moving) and _is_alone(func):
            place = self._common_place(args, kwargs)
            if place is not None:
                return self._run_alone(func, args, kwargs, place)
        here = recorder.here
        before = here.is_call_on_device, here.reading
        here.reading = _READINGS.get(getattr(func, "__name__", ""), "")
        device = None
        if kwargs.get("device") is None:
            device = recorder.devices.first_device((*args, *kwargs.values()))
        here.is_call_on_device = device is not None
        if device is not None:
            here.last_device = device
        try:
            return func(*args, **kwargs)
        finally:
            here.is_call_on_device, here.reading = before

    def _common_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return where all tensors of a call are; None where only the recorder may run it.

        So it is where they differ, where something is named that only machines with a GPU do, and
        where gradients flow: what a call keeps for its backward, which is seen, must be known.
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
        """Run a call without the recorder, and put its results where its tensors are."""
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
    """Return whether nobody but torch's C++ is concerned with what a call does.

    Python may name a device further down, and modes of the script's own want to see it all.
    """
    return (
        type(func) is not FunctionType
        and func.__name__ not in _SCATTERING
        and torch.utils._device.CURRENT_DEVICE is None
        and torch._C._len_torch_dispatch_stack() == 1
    )


def patch_compiled_calls(patches: Patches, recorder: StepRecorder) -> None:
    """Let what compiled functions and modules create be on the device of their arguments.

    TorchScript's own ``x.device`` is the real one.
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
