"""What modules and optimizers hold, whatever a script has made of their methods.

A script may override ``parameters``, ``named_modules`` or ``__eq__``; torch calls those where the
script asks for it, and so does nobody else.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

import torch
from torch import nn

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def named_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all of its parts once each, with their dotted paths below it."""
    return _named_parts(module, "", set())


def named_parameters_of(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module and its parts; those that are shared by all their names."""
    for path, part in _named_parts(module, "", None):
        for name, parameter in _held(part, "_parameters"):
            yield f"{path}.{name}" if path else name, parameter


def has_parameters(module: nn.Module) -> bool:
    """Return whether a module or one of its parts has a parameter."""
    return any(_held(part, "_parameters") for _, part in named_parts(module))


def children_of(module: nn.Module) -> list[nn.Module]:
    """Return the direct parts of a module."""
    return [part for _, part in _held(module, "_modules")]


def updated_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield what an optimizer updates; nothing as long as it cannot tell."""
    for group in groups_of(optimizer):
        yield from group["params"]


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; none as long as it cannot tell.

    One that wraps another offers the other's, and has none before it knows it.
    """
    try:
        return list(optimizer.param_groups)
    except AttributeError:
        return []


def _named_parts(
    module: nn.Module, path: str, known: set[int] | None
) -> Iterator[tuple[str, nn.Module]]:
    if known is not None:
        if id(module) in known:
            return
        known.add(id(module))
    yield path, module
    for name, part in _held(module, "_modules"):
        yield from _named_parts(part, f"{path}.{name}" if path else name, known)


def _held(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Return what is there of ``_modules`` or ``_parameters``; one not made yet has neither."""
    found = object.__getattribute__(module, "__dict__").get(kind)
    return (
        [] if found is None else [(name, item) for name, item in found.items() if item is not None]
    )


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
