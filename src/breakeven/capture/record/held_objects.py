"""Contents of a script's objects and names in its functions, read without calling them.

They show whether a DataLoader's code may use tensors on a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from breakeven.capture.location import user_frame
from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.target import as_text
from breakeven.trace import HostArray


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def elements_of(
    held: list[Any] | tuple[Any, ...] | dict[Any, Any], most: int | None = None
) -> Iterable[Any]:
    """Return the first stored elements, bypassing methods of a subclass."""
    if isinstance(held, dict):
        return islice(dict.values(held), most)
    if isinstance(held, list):
        return islice(list.__iter__(held), most)
    return islice(tuple.__iter__(held), most)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of its inner functions and comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


# Smaller arrays are settings and statistics.
_MIN_BYTES = 1 << 16
_MAX_ARRAYS = 64


def held_arrays(frame: FrameType | None) -> tuple[HostArray, ...]:
    """Return the arrays that user code in ``frame`` and its callers can name, largest first.

    They are in variables, in attributes of objects, and in entries of dictionaries there.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ()
    kind: type[Any] = numpy.ndarray
    found: dict[int, tuple[str, Any]] = {}
    while (frame := user_frame(frame)) is not None:
        for name, array in _arrays_in(frame.f_globals | frame.f_locals, kind):
            is_known = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
            if array.nbytes >= _MIN_BYTES and is_known:
                found.setdefault(id(array), (name, array))
        frame = frame.f_back
    arrays = (
        HostArray(name=as_text(name), dtype=array.dtype.name, shape=tuple(array.shape))
        for name, array in found.values()
    )
    largest_first = sorted(arrays, key=lambda array: array.num_bytes, reverse=True)
    return tuple(largest_first[:_MAX_ARRAYS])


def _arrays_in(names: Mapping[str, Any], kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in names.items():
        if issubclass(type(value), kind):
            yield name, value
            continue
        # The contents of modules and classes are not the script's data.
        if issubclass(type(value), (type, ModuleType)):
            continue
        inner = dict(value) if type(value) is dict else attributes_of(value)
        for key, item in inner.items():
            if isinstance(key, str) and issubclass(type(item), kind):
                yield key, item


# Deep enough for a data set in a subset in the user's wrapper. Items of longer lists are samples,
# all alike.
_MAX_DEPTH = 5
_MAX_ITEMS = 16


def may_reach_device(loader: DataLoader[Any], devices: DeviceMap) -> bool:
    """Return whether the data set, the sampler or the collation uses a device.

    They do if they hold a tensor on one, or may move one there. The search follows attributes,
    closures and the globals in methods, a few levels deep.
    """
    sources = [vars(loader).get(name) for name in ("dataset", "sampler", "batch_sampler")]
    waiting = [(source, 0) for source in [*sources, vars(loader).get("collate_fn")]]
    seen: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(value))
        # Do not use `isinstance`, which a proxy answers for another object.
        if issubclass(type(value), torch.Tensor):
            if devices.is_on_device(cast(torch.Tensor, value)):
                return True
            continue
        if type(value) is FunctionType and _may_move(value.__code__):
            return True
        waiting += [(part, depth + 1) for part in _parts_of(value)]
    return False


def _may_move(code: CodeType) -> bool:
    """Return whether a function calls ``cuda``, or ``to`` with a name that suggests a device.

    Most calls of ``to`` in a data set change a dtype.
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
    """Yield the objects that an object refers to, without calling its methods."""
    kind = type(value)
    if issubclass(kind, (list, tuple, dict)):
        yield from elements_of(value, _MAX_ITEMS)
    elif kind is MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is FunctionType:
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
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
