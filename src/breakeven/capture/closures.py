"""The closure that an optimizer is given, seen each time it runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def around_closure(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any],
    around: Callable[[Callable[[], Any]], Any],
) -> Arguments | None:  # fmt: skip
    """Return the arguments of ``step`` with another closure; None where it has none.

    Args:
        optimizer: Whose ``step`` is called.
        args: As a hook of torch gets them: the first is the optimizer.
        kwargs: As a hook of torch gets them.
        around: Called with what evaluates the script's closure, each time that it is to run.
    """
    # What is there is a closure where `step` calls it so: an optimizer of one's own may take a
    # learning rate, or a model.
    own, rest = args[:1], args[1:]
    is_first = bool(rest) and _takes_closure(optimizer)
    closure = rest[0] if is_first else kwargs.get("closure")
    if not callable(closure):
        return None

    def evaluate(*given: Any, **named: Any) -> Any:
        return around(functools.partial(closure, *given, **named))

    if is_first:
        return (*own, evaluate, *rest[1:]), kwargs
    return args, {**kwargs, "closure": evaluate}


def _takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("closure",)
