"""Undoable patches of torch and the process, and safe access to modules and optimizers.

A script may override ``parameters``, ``named_modules`` or ``__eq__``. torch calls these only when
the script asks for it, so this module never calls them.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Self, TypeVar

import torch
from torch import nn

_ABSENT = object()
# Parameters of mallopt. Source: glibc, malloc/malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


class Patches(ExitStack):
    """A stack of replaced attributes; leaving it restores all in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self._originals: dict[int, Any] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._apply()
        return self

    def _apply(self) -> None:
        """Make the replacements of a subclass; called on entry."""

    def original_of(self, value: Any) -> Any:
        """Return the original that ``value`` replaces; ``value`` if it replaces nothing."""
        return self._originals.get(id(value), value)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` until the stack is left.

        An attribute that ``owner`` inherits is shadowed, and visible again afterwards.
        """
        original = vars(owner).get(name, _ABSENT)
        # Reading a lazy attribute of a package would import it.
        is_lazy = original is _ABSENT and type(owner) is ModuleType
        self._originals[id(value)] = None if is_lazy else getattr(owner, name, None)
        setattr(owner, name, value)
        self.callback(_restore, owner, name, original)

    def call_after_making(self, kind: type, callback: Callable[[Any], object]) -> None:
        """Call back with each new object of a class or its subclasses, after construction."""
        original: Any = kind.__init__

        @functools.wraps(original)
        def initialize(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            callback(made)

        self.replace(kind, "__init__", initialize)


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def keep_freed_memory() -> bool:
    """Keep freed memory for reuse instead of returning it to the operating system.

    Returning the memory of large tensors and getting new pages can take longer than the step on a
    GPU, whose allocator keeps its memory. A recording shows that time as the script's own work
    between two operators. This cannot be undone, so use it in a process that ends with its run.
    Only glibc supports it.

    Returns:
        Whether anything changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    return True


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def named_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all its parts once each, with their dotted paths below it."""
    return _named_parts(module, "", set())


def named_parameters_of(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module and its parts; a shared one appears under each name."""
    for path, part in _named_parts(module, "", None):
        for name, parameter in _held(part, "_parameters"):
            yield f"{path}.{name}" if path else name, parameter


def has_parameters(module: nn.Module) -> bool:
    """Whether a module or one of its parts has a parameter."""
    return any(_held(part, "_parameters") for _, part in named_parts(module))


def updated_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer updates; none while it has no groups."""
    for group in groups_of(optimizer):
        yield from group["params"]


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; none while it has no ``param_groups``.

    A wrapping optimizer returns the groups of the inner one, and has none before it is set.
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
    """Return the items of ``_modules`` or ``_parameters``; none before ``Module.__init__``."""
    found = object.__getattribute__(module, "__dict__").get(kind)
    return (
        [] if found is None else [(name, item) for name, item in found.items() if item is not None]
    )


class ByIdentity(MutableMapping[_Key, _Value]):
    """A map that compares keys by identity and drops an entry when its key is deleted.

    It calls no method of a key: not ``__hash__`` or ``__eq__``, which a class may lack, and not
    ``__getattr__``.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def __getitem__(self, key: _Key) -> _Value:
        return self._held[id(key)][1]

    def __setitem__(self, key: _Key, value: _Value) -> None:
        held, number = self._held, id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            # Another object may have the number by now.
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
