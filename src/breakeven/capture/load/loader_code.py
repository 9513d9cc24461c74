"""Whether what a DataLoader calls may have to do with tensors on a device."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.held_objects import attributes_of, codes_of, elements_of

# A data set in a subset in a wrapper of one's own; items of longer lists are samples, all alike.
_MAX_DEPTH = 5
_MAX_ITEMS = 16


def may_reach_device(loader: DataLoader[Any], devices: DeviceMap) -> bool:
    """Return whether the data set, the sampler or the collation has to do with a device.

    So it is where they hold a tensor on one, or may move one there. Attributes, closures and the
    globals that methods name are followed a few levels deep.
    """
    sources = [vars(loader).get(name) for name in ("dataset", "sampler", "batch_sampler")]
    waiting = [(source, 0) for source in [*sources, vars(loader).get("collate_fn")]]
    seen: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(value))
        # Not `isinstance`, which a proxy answers for another object.
        if issubclass(type(value), torch.Tensor):
            if devices.is_on_device(cast(torch.Tensor, value)):
                return True
            continue
        if type(value) is FunctionType and _may_move(value.__code__):
            return True
        waiting += [(part, depth + 1) for part in _parts_of(value)]
    return False


def _may_move(code: CodeType) -> bool:
    """Return whether a function has ``x.cuda()``, or ``x.to(...)`` and what is named like a device.

    Most calls of ``to`` in a data set change a type.
    """
    called: set[str] = set()
    named: set[str] = set()
    for part in codes_of(code):
        called.update(part.co_names)
        named.update(part.co_names, part.co_varnames, part.co_freevars)
        named.update(constant for constant in part.co_consts if isinstance(constant, str))
    is_device_named = any("dev" in name or "cuda" in name for name in named)
    return "cuda" in called or ("to" in called and is_device_named)


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield what an object refers to, without a call of its own methods."""
    kind = type(value)
    if issubclass(kind, (list, tuple, dict)):
        yield from elements_of(value, _MAX_ITEMS)
    elif kind is MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is FunctionType:
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
    elif not issubclass(kind, type):
        yield from attributes_of(value).values()
        for name in ("__getitem__", "__getitems__", "__iter__", "__call__"):
            method = getattr(kind, name, None)
            if isinstance(method, FunctionType):
                yield method
