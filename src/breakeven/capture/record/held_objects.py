"""Contents of a script's objects and names in its functions, read without calling them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

from breakeven.capture.location import user_frame
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
