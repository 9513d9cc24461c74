"""Checkpoints that were written on a GPU, or are read onto one, without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from breakeven.capture._cuda_names import is_cuda
from breakeven.capture._device_map import DEVICE, DeviceMap
from breakeven.capture._patching import Patches


def patch_serialization(patches: Patches, devices: DeviceMap | None = None) -> None:
    """Let ``torch.load`` put CUDA tensors on the CPU.

    Args:
        patches: Restores everything when it is left.
        devices: Notes which of them live on the pretended device; None where there is none.
    """
    original_load = torch.load

    def place(storage: torch.UntypedStorage, *_: Any, **__: Any) -> torch.UntypedStorage:
        if devices is not None:
            devices.place(storage, DEVICE)
        return storage

    @functools.wraps(original_load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original_load(f, _restorer(map_location, place), *args, **kwargs)

    patches.replace(torch, "load", load)
    # `map_location=lambda storage, location: storage.cuda(0)`
    patches.replace(torch.UntypedStorage, "cuda", place)
    if devices is None:
        return
    original_tag = torch.serialization.location_tag

    def location_tag(storage: Any) -> str:
        untyped = getattr(storage, "_untyped_storage", storage)
        return str(original_tag(storage)) if not devices.is_on_device(untyped) else DEVICE

    patches.replace(torch.serialization, "location_tag", location_tag)


def _restorer(map_location: Any, place: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    """Return the function that ``torch.load`` asks where each storage goes."""

    def restore(storage: Any, location: str) -> Any:
        target: Any = location
        if isinstance(map_location, dict):
            target = map_location.get(location, location)
        elif callable(map_location):
            found = map_location(storage, location)
            if found is not None:
                return found
        elif map_location is not None:
            target = map_location
        if is_cuda(target):
            return place(storage)
        return torch.serialization.default_restore_location(storage, str(target))

    return restore
