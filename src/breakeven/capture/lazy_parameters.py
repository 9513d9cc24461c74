"""Parameters of lazy modules: moved before they exist."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from breakeven.capture.device_map import DeviceMap
from breakeven.capture.unrecorded import without_modes
from breakeven.configure import Patches

_WANTED = "_wanted_device"


def is_uninitialized(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a parameter without memory as yet."""
    return isinstance(tensor, UninitializedTensorMixin)


def place_later(tensor: torch.Tensor, device: str) -> None:
    """Note where a parameter belongs once it has memory."""
    setattr(tensor, _WANTED, device)


def patch_lazy_parameters(patches: Patches, devices: DeviceMap) -> None:
    """Place parameters where they belong as soon as they get their memory."""
    original = UninitializedTensorMixin.materialize

    def materialize(tensor: Any, *args: Any, **kwargs: Any) -> None:
        device = vars(tensor).pop(_WANTED, None)
        with without_modes():  # it cannot be described before it exists
            original(tensor, *args, **kwargs)
        if device is not None:
            devices.place(tensor, device)

    patches.replace(UninitializedTensorMixin, "materialize", materialize)
