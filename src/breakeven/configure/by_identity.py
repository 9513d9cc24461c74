"""Values by the very objects of a script, whatever those say of being equal."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ByIdentity(MutableMapping[_Key, _Value]):
    """A map whose keys are told apart by being another object, and forgotten when they are gone.

    Nothing of a key is called: neither ``__hash__`` and ``__eq__``, which a class of one's own may
    leave out, nor ``__getattr__``.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def __getitem__(self, key: _Key) -> _Value:
        return self._held[id(key)][1]

    def __setitem__(self, key: _Key, value: _Value) -> None:
        held, number = self._held, id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            # The number may be another object's by now.
            if held.get(number, (None,))[0] is reference:
                del held[number]

        self._held[number] = (weakref.ref(key, forget), value)

    def __delitem__(self, key: _Key) -> None:
        del self._held[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._held

    def __iter__(self) -> Iterator[_Key]:
        for reference, _ in list(self._held.values()):
            key = reference()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return len(self._held)
