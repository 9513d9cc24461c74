"""What modules and optimizers hold, whatever a script has made of their methods.

A script may override ``parameters``, ``named_modules`` or ``__eq__``; torch calls those where the
script asks for it, and so does nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


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
