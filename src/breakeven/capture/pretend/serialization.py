"""Checkpoints that were written on a GPU, or are read onto one, without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from breakeven.capture.record.cuda_devices import CudaDevices, is_cuda
from breakeven.capture.record.device_map import DeviceMap
from breakeven.configure import Patches


def patch_serialization(
    patches: Patches, devices: DeviceMap | None = None, cuda: CudaDevices | None = None
) -> None:
    """Let ``torch.load`` put CUDA tensors on the CPU.

    Args:
        patches: Restores everything when it is left.
        devices: Notes which of them live on a pretended device; None where there is none.
        cuda: The pretended devices; one by default.
    """
    original_load = torch.load
    pretended = cuda or CudaDevices()

    def place(
        storage: torch.UntypedStorage, device: Any = None, *_: Any, **__: Any
    ) -> torch.UntypedStorage:
        if devices is not None:
            devices.place(storage, pretended.name_of(device))
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
        if not devices.is_on_device(untyped):
            return str(original_tag(storage))
        return devices.device_of(untyped)

    patches.replace(torch.serialization, "location_tag", location_tag)


def _restorer(map_location: Any, place: Callable[..., Any]) -> Callable[[Any, str], Any]:
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
            return place(storage, target)
        return torch.serialization.default_restore_location(storage, str(target))

    return restore
