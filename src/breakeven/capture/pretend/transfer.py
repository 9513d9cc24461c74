"""Moves tensors between the host and fake devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # pyright: ignore[reportAttributeAccessIssue]

from breakeven.capture.pretend.stand_ins import patch_module_to
from breakeven.capture.record.device_map import DEVICE, HOST, CudaDevices, DeviceMap
from breakeven.capture.record.modes import undispatched, without_modes
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _seen_by_subclasses(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a tensor method that, like torch's own, lets a subclass handle its call.

    For a plain tensor, no call inside counts as the script's own.
    """

    @functools.wraps(method)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kind = type(tensor)
        if kind in _PLAIN_TYPES:
            with torch._C.DisableTorchFunction():
                return method(tensor, *args, **kwargs)
        handle = kind.__torch_function__
        is_handled = (
            torch._C._is_torch_function_enabled()
            and handle is not torch._C._disabled_torch_function_impl
            and not is_lazy(tensor)
        )
        if is_handled:
            return handle(call, (kind,), (tensor, *args), kwargs)
        return method(tensor, *args, **kwargs)

    return call


def _transfer(
    recorder: StepRecorder, original_to: Callable[..., torch.Tensor], tensor: torch.Tensor,
    where: str, options: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """Return a copy of ``tensor`` at ``where``; gradients flow back.

    As on CUDA, a change of dtype in the same call happens at the source, before the copy. A change
    of memory format happens at the target, after it. So a byte image cast to float32 in the call
    travels as float32.
    """
    non_blocking = bool(options.pop("non_blocking", False))
    memory_format = options.pop("memory_format", torch.preserve_format)
    options.pop("copy", None)
    if options:
        tensor = original_to(tensor, **options)
    if tensor.requires_grad and torch.is_grad_enabled():
        tensor = _Transfer.apply(tensor, recorder, where, non_blocking)
    else:
        tensor = _copy(tensor, recorder, where, non_blocking)
    if memory_format is not torch.preserve_format:
        tensor = tensor.contiguous(memory_format=memory_format)
    return tensor


class _Transfer(torch.autograd.Function):
    """A copy whose backward pass copies gradients back to the source."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, recorder: StepRecorder, where: str, non_blocking: bool
    ) -> torch.Tensor:
        ctx.recorder = recorder
        ctx.back = recorder.devices.device_of(tensor)
        return _copy(tensor, recorder, where, non_blocking)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _copy(gradients[0], ctx.recorder, ctx.back, False), None, None, None


def _copy(
    tensor: torch.Tensor, recorder: StepRecorder, where: str, non_blocking: bool
) -> torch.Tensor:
    devices = recorder.devices
    came_from = devices.device_of(tensor)
    with torch._C.DisableTorchFunction(), undispatched():
        copied = recorder.compute(lambda given: given.detach().clone(), tensor)
    devices.place(copied, where)
    if came_from == HOST:
        recorder.record_copy(
            tensor, HOST, where, is_pinned=devices.is_pinned(tensor), non_blocking=non_blocking
        )
    elif where != HOST:  # a copy between devices bypasses the host
        recorder.record_copy(tensor, came_from, where, is_pinned=False, non_blocking=True)
    elif non_blocking:
        # For an asynchronous copy to the host, torch allocates pinned memory.
        recorder.record_copy(tensor, came_from, HOST, is_pinned=True, non_blocking=True)
    else:
        recorder.record_read("cpu", tensor)
    return copied


_WANTED = "_wanted_device"


def patch_lazy_parameters(patches: Patches, devices: DeviceMap) -> None:
    """Place lazy parameters on their device when they get memory."""
    original = UninitializedTensorMixin.materialize

    def materialize(tensor: Any, *args: Any, **kwargs: Any) -> None:
        device = vars(tensor).pop(_WANTED, None)
        with without_modes():  # an uninitialized tensor cannot be recorded
            original(tensor, *args, **kwargs)
        if device is not None:
            devices.place(tensor, device)

    patches.replace(UninitializedTensorMixin, "materialize", materialize)


def patch_transfers(patches: Patches, recorder: StepRecorder) -> None:
    """Make ``to``, ``cuda`` and similar methods move tensors between host and fake devices."""
    original_to = torch.Tensor.to
    devices = recorder.devices
    # A script moves its batch by `batch.to(device)`, even if that device is the CPU.
    by_name = DEVICE if recorder.is_moving else HOST

    @_seen_by_subclasses
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
        if is_lazy(tensor):
            setattr(tensor, _WANTED, where)
            return tensor
        if devices.device_of(tensor) != where:
            return _transfer(recorder, original_to, tensor, where, options)
        # The real tensor is already on the CPU: change only dtype and format.
        return original_to(tensor, **options) if options else tensor

    def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any):
        wanted = recorder.cuda.as_device("cuda" if device is None else device)
        return to(tensor, wanted, non_blocking=non_blocking)

    @_seen_by_subclasses
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
        patches.replace(torch.Tensor, name, recorder.unseen(method))
    patch_module_to(patches, recorder.cuda.as_device)


def _split_device(
    tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], cuda: CudaDevices
) -> tuple[torch.device | None, dict[str, Any]]:
    """Separate the device from the arguments of ``Tensor.to``; return the rest as keywords."""
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
