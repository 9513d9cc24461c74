"""Whether what a DataLoader calls can get at tensors that are on a device already."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import DataLoader

from breakeven.capture._device_map import DeviceMap

# A data set in a subset in a wrapper of one's own; items of longer lists are samples, all alike.
_MAX_DEPTH = 5
_MAX_ITEMS = 16


def reaches_device(loader: DataLoader[Any], devices: DeviceMap) -> bool:
    """Return whether the data set, the sampler or the collation holds a tensor on a device.

    Attributes, closures and the globals that methods name are followed a few levels deep. What a
    fetch puts on a device itself is seen when it does.
    """
    sources = [vars(loader).get(name) for name in ("dataset", "sampler", "batch_sampler")]
    waiting = [(source, 0) for source in [*sources, vars(loader).get("collate_fn")]]
    seen: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if devices.is_on_device(value):
                return True
            continue
        waiting += [(part, depth + 1) for part in _parts_of(value)]
    return False


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield what an object refers to, without a call of its own methods."""
    if isinstance(value, (list, tuple)):
        yield from value[:_MAX_ITEMS]
    elif isinstance(value, dict):
        yield from list(value.values())[:_MAX_ITEMS]
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # it is not filled yet
                continue
        yield from (
            found
            for name in value.__code__.co_names
            if isinstance(found := value.__globals__.get(name), torch.Tensor)
        )
    elif not isinstance(value, type) and isinstance(getattr(value, "__dict__", None), dict):
        yield from vars(value).values()
        for name in ("__getitem__", "__getitems__", "__iter__", "__call__"):
            method = getattr(type(value), name, None)
            if isinstance(method, FunctionType):
                yield method
