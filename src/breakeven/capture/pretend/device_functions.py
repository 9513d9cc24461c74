"""The functions of torch that create a tensor on a device named by the caller.

The list comes from torch itself: operators have schemas, and Python functions have signatures.
Other C++ bindings have their signature in the first line of their documentation.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from breakeven.capture.pretend.stand_ins import patch_default_device
from breakeven.capture.record.device_map import HOST, is_cuda
from breakeven.capture.record.modes import undispatched
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.trace import Phase

# Modules in which torch keeps functions for scripts.
_MODULES = (
    "torch", "torch.fft", "torch.functional", "torch.linalg", "torch.nested", "torch.nn.functional",
    "torch.nn.init", "torch.random", "torch.signal.windows", "torch.sparse", "torch.special",
)  # fmt: skip
_DEVICE = "device"
_IN_C = (BuiltinFunctionType, MethodDescriptorType)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFunction:
    """A function that takes ``device``.

    Args:
        owner: The module or class that contains it.
        name: Its name in the owner.
        position: Position of ``device`` as a positional argument; -1 for none.
        is_from_data: Whether it creates the tensor from Python data on the host, and copies it.
    """

    owner: Any
    name: str
    position: int = -1
    is_from_data: bool = False

    def current(self) -> Any:
        """Return the owner's current function."""
        return getattr(self.owner, self.name)

    def stand_in(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with the name and module of the current one, also for pickling."""
        functools.update_wrapper(function, self.current())
        is_method = isinstance(self.owner, type)
        function.__module__ = "torch" if is_method else self.owner.__name__
        function.__qualname__ = f"{self.owner.__name__}.{self.name}" if is_method else self.name
        return function

    def naming(self, name: Callable[[Any], Any], pin: Callable[[Any], None]) -> Callable[..., Any]:
        """Return a stand-in that maps a CUDA device argument through ``name``.

        Args:
            name: Returns a device that this machine's torch has.
            pin: Called with each tensor to pin, since torch cannot pin without a GPU.
        """
        function, position = self.current(), self.position

        @self.stand_in
        def call(*args: Any, **kwargs: Any) -> Any:
            is_pinned = False
            if kwargs:
                if is_cuda(kwargs.get("device")):
                    kwargs["device"] = name(kwargs["device"])
                if is_pinned := bool(kwargs.get("pin_memory")):
                    kwargs["pin_memory"] = False
            if 0 <= position < len(args) and is_cuda(args[position]):
                args = (*args[:position], name(args[position]), *args[position + 1 :])
            created = function(*args, **kwargs)
            if is_pinned:
                pin(created)
            return created

        return call


@functools.cache
def device_functions() -> tuple[DeviceFunction, ...]:
    """Return the functions, and methods of ``torch.Tensor``, that take a device for their result.

    Conversions of a tensor (``to``, ``cuda``, ``pin_memory``) are left out: they take the device
    first, without its name.
    """
    owners = [*(importlib.import_module(name) for name in _MODULES), torch.Tensor]
    found: dict[int, DeviceFunction] = {}
    for owner in owners:
        for name in dir(owner):
            value = None if name.startswith("_") else getattr(owner, name, None)
            if not isinstance(value, (*_IN_C, FunctionType)) or id(value) in found:
                continue
            # If the function is replaced now, describe its original.
            described = _describe(owner, name, inspect.unwrap(value))
            if described is not None:
                found[id(value)] = described
    return tuple(found.values())


def _describe(owner: Any, name: str, function: Any) -> DeviceFunction | None:
    if isinstance(function, FunctionType):
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        # Others select or describe a device, and create no tensor there.
        makes_tensor = "Tensor" in str(function.__annotations__.get("return", ""))
        if _DEVICE not in parameters or not makes_tensor:
            return None
        names = parameters[: code.co_argcount]
        position = names.index(_DEVICE) if _DEVICE in names else -1
        return DeviceFunction(owner=owner, name=name, position=position)
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}")
    if not schemas:
        # The documentation's first line is the signature; look for ``device`` among its keywords.
        signature = (function.__doc__ or "").strip().split("->", 1)[0].split("\n\n", 1)[0]
        is_one = f" {_DEVICE}" in signature.partition("*,")[2]
        return DeviceFunction(owner=owner, name=name, is_from_data=True) if is_one else None
    # Schemas with ``device``, and whether it is keyword-only in each.
    taking = {
        schema.name + (f".{schema.overload_name}" if schema.overload_name else ""): item.kwarg_only
        for schema in schemas
        for item in schema.arguments
        if item.name == _DEVICE
    }
    if not taking or not all(taking.values()):
        return None
    # Some schemas belong only to the TorchScript compiler, not to the dispatcher. A sparse tensor
    # is an operator of indices and values, which may be lists.
    is_known = any(map(torch._C._dispatch_has_kernel, taking))
    is_from_data = "array_like" in (function.__doc__ or "") or not is_known
    return DeviceFunction(owner=owner, name=name, is_from_data=is_from_data)


_DTYPES = {
    "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16, "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64, "BoolTensor": torch.bool, "ByteTensor": torch.uint8,
    "CharTensor": torch.int8, "ShortTensor": torch.int16, "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}  # fmt: skip
_CUDA = "torch.cuda."


class _CudaTensorType:
    """Creates tensors of a dtype on the CUDA device, and recognizes them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *values: Any) -> torch.Tensor:
        if all(isinstance(value, int) for value in values):
            return torch.empty(values, dtype=self.dtype, device="cuda")
        if isinstance(values[0], torch.Size):
            return torch.empty(values[0], dtype=self.dtype, device="cuda")
        return torch.as_tensor(values[0], dtype=self.dtype, device="cuda")

    def __instancecheck__(self, item: object) -> bool:
        return isinstance(item, torch.Tensor) and item.is_cuda and item.dtype == self.dtype


def patch_legacy_types(patches: Patches) -> None:
    """Make the tensor types of ``torch.cuda`` work on a torch built without CUDA."""
    types = {name: _CudaTensorType(dtype) for name, dtype in _DTYPES.items()}
    for name, value in types.items():
        patches.replace(torch.cuda, name, value)
    original_type = torch.Tensor.type
    original_default = torch.set_default_tensor_type

    def find(wanted: Any) -> Any:
        if isinstance(wanted, str) and wanted.startswith(_CUDA):
            return types.get(wanted.removeprefix(_CUDA), wanted)
        return wanted

    def convert(
        tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **_: Any
    ) -> Any:
        if dtype is None:
            # Under a function mode, torch finds this function again by its name.
            name = str(original_type(tensor)).removeprefix(_CUDA).removeprefix("torch.")
            return (_CUDA if tensor.is_cuda else "torch.") + name
        wanted = find(dtype)
        if isinstance(wanted, torch.dtype):
            return tensor.to(wanted, non_blocking=non_blocking)
        if isinstance(wanted, _CudaTensorType):
            return tensor.to("cuda", wanted.dtype, non_blocking=non_blocking)
        # A CPU type moves the tensor back.
        name = wanted if isinstance(wanted, str) else wanted.__name__
        target = _DTYPES.get(name.rpartition(".")[2])
        return original_type(tensor, dtype) if target is None else tensor.to("cpu", target)

    def set_default_tensor_type(wanted: Any) -> None:
        found = find(wanted)
        if isinstance(found, _CudaTensorType):
            torch.set_default_dtype(found.dtype)
            torch.set_default_device("cuda")
        else:
            original_default(wanted)

    patches.replace(torch.Tensor, "type", convert)
    patches.replace(torch, "set_default_tensor_type", set_default_tensor_type)


# Functions that wrap host memory without a copy.
_WRAPPING = ("from_numpy", "frombuffer", "from_file")


def patch_creation(patches: Patches, recorder: StepRecorder) -> None:
    """Make functions create tensors on the device that the script names.

    Args:
        patches: Restores everything on exit.
        recorder: Holds the number of GPUs, and starts to watch when the script names one.
    """

    def watched(device: Any) -> torch.device:
        """Return the device that a script names; if it is a GPU, start to watch."""
        if is_cuda(device):
            recorder.start_watching()
        return recorder.cuda.as_device(device)

    for found in device_functions():
        # Without a GPU, torch accepts no number as a device.
        if found.is_from_data:
            create = _created_on_host(found, recorder)
        else:
            create = found.naming(watched, recorder.devices.pin)
        patches.replace(found.owner, found.name, create)
    # `with torch.device("cuda")` reaches only this function.
    patch_default_device(patches, watched)
    for name in _WRAPPING:
        patches.replace(torch, name, _wrapped_on_host(getattr(torch, name), recorder))


def _created_on_host(found: DeviceFunction, recorder: StepRecorder) -> Callable[..., Any]:
    """Return a stand-in that creates from data on the host, then copies to the named device.

    The script's arguments go to torch unchanged, except a CUDA device and pinned memory, which
    this torch does not support.
    """
    function, devices = found.current(), recorder.devices
    is_method = isinstance(found.owner, type)

    @found.stand_in
    def create(*args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device")
        if target is None:  # use the device of the method's tensor, or of `with device:`
            target = args[0].device if is_method else _default_device()
        on_device = target is not None and is_cuda(target)
        if on_device and (kwargs.get("device") is not None or not is_method):
            kwargs["device"] = "cpu"
        is_pinned = kwargs.get("pin_memory")
        if is_pinned:
            kwargs["pin_memory"] = False
        given = next(iter((*args, *kwargs.values())))
        if isinstance(given, torch.Tensor):
            created = function(*args, **kwargs)
        else:
            created = _created_unrecorded(function, args, kwargs, recorder)
        if is_pinned:
            devices.pin(created)
        if target is None and recorder.is_moving and not isinstance(given, torch.Tensor):
            devices.place(created, HOST)
        if recorder.is_moving and recorder.here.phase is Phase.OPTIMIZER and not on_device:
            devices.place(created, HOST)  # torch itself passes "cpu" for step counters
            return created
        if target is None or not (on_device or torch.device(target).type == "cpu"):
            return created
        if not kwargs.get("requires_grad"):
            return created.to(target)
        return created.detach().to(target).requires_grad_()

    return create


def _default_device() -> torch.device | None:
    """Return the device of ``set_default_device`` or ``with device:``; None without either."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _wrapped_on_host(
    function: Callable[..., torch.Tensor], recorder: StepRecorder
) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        created = _created_unrecorded(function, args, kwargs, recorder)
        if recorder.is_moving:
            recorder.devices.place(created, HOST)
        return created

    return create


def _created_unrecorded(
    function: Callable[..., torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any],
    recorder: StepRecorder,
) -> torch.Tensor:  # fmt: skip
    """Create from data on the host, bypassing a recorder that has nothing to record."""
    is_noted = recorder.is_recording or recorder.is_moving
    if is_noted or torch._C._len_torch_dispatch_stack() != 1:  # or a mode of the script's own
        return function(*args, **kwargs)
    with undispatched():
        return function(*args, **kwargs)
