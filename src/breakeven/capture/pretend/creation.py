"""Where tensors are created on pretended CUDA devices: for the traced run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from breakeven.capture.pretend.device_functions import DeviceFunction, device_functions
from breakeven.capture.pretend.redirect import patch_default_device
from breakeven.capture.record.cuda_devices import is_cuda
from breakeven.capture.record.device_map import HOST
from breakeven.capture.record.modes import undispatched
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.trace import Phase

# What reads memory of the host where it is.
_WRAPPING = ("from_numpy", "frombuffer", "from_file")


def patch_creation(patches: Patches, recorder: StepRecorder) -> None:
    """Let functions that create tensors do so where the script wants them.

    Args:
        patches: Undone where these are.
        recorder: Says how many GPUs there are, and watches once one is named.
    """

    def watched(device: Any) -> torch.device:
        """Return the device that a script names, and watch from then on if it is a GPU."""
        if is_cuda(device):
            recorder.start_watching()
        return recorder.cuda.as_device(device)

    for found in device_functions():
        # A number means no device to torch where there is no GPU.
        create = _created_on_host(found, recorder) if found.is_from_data else found.naming(watched)
        patches.replace(found.owner, found.name, create)
    # `with torch.device("cuda")` comes here alone.
    patch_default_device(patches, watched)
    for name in _WRAPPING:
        patches.replace(torch, name, _wrapped_on_host(getattr(torch, name), recorder))


def _created_on_host(found: DeviceFunction, recorder: StepRecorder) -> Callable[..., Any]:
    """Create from data on the host, then copy where the script wants it.

    The script's arguments go to torch as they are, but for a CUDA device and pinned memory, of
    which torch knows nothing here.
    """
    function, devices = found.current(), recorder.devices
    is_method = isinstance(found.owner, type)

    @found.stand_in
    def create(*args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device")
        if target is None:  # beside the tensor whose method it is, or what `with device:` says
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
            created = _created_unseen(function, args, kwargs, recorder)
        if is_pinned:
            devices.pin(created)
        if target is None and recorder.is_moving and not isinstance(given, torch.Tensor):
            devices.place(created, HOST)
        if recorder.is_moving and recorder.here.phase is Phase.OPTIMIZER and not on_device:
            devices.place(created, HOST)  # torch itself says "cpu" for counters of steps
            return created
        if target is None or not (on_device or torch.device(target).type == "cpu"):
            return created
        if not kwargs.get("requires_grad"):
            return created.to(target)
        return created.detach().to(target).requires_grad_()

    return create


def _default_device() -> torch.device | None:
    """Return what ``set_default_device`` or ``with device:`` says; None where nothing does."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _wrapped_on_host(
    function: Callable[..., torch.Tensor], recorder: StepRecorder
) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        created = _created_unseen(function, args, kwargs, recorder)
        if recorder.is_moving:
            recorder.devices.place(created, HOST)
        return created

    return create


def _created_unseen(
    function: Callable[..., torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any],
    recorder: StepRecorder,
) -> torch.Tensor:  # fmt: skip
    """Create from data of the host, past the recorder while it has nothing to note of that."""
    is_noted = recorder.is_recording or recorder.is_moving
    if is_noted or torch._C._len_torch_dispatch_stack() != 1:  # or a mode of the script's own
        return function(*args, **kwargs)
    with undispatched():
        return function(*args, **kwargs)
