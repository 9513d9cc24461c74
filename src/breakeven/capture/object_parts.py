"""What objects of a script hold, and what its functions name, without a call of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType
from typing import Any


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object itself has."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def elements_of(
    held: list[Any] | tuple[Any, ...] | dict[Any, Any], most: int | None = None
) -> Iterable[Any]:
    """Return the first elements as they are stored, whatever a class of one's own makes of them."""
    if isinstance(held, dict):
        return islice(dict.values(held), most)
    if isinstance(held, list):
        return islice(list.__iter__(held), most)
    return islice(tuple.__iter__(held), most)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)
