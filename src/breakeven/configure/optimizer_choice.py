"""Another implementation of torch's optimizers, where the script leaves the choice to torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from breakeven.configure.patching import Patches

_CHOICES = ("foreach", "fused")


class chosen_optimizers(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, optimizers of torch are made with ``foreach=True`` or ``fused=True``.

    An optimizer stays as the script makes it where that names one of the two, or asks for
    ``differentiable``; where its class knows no such choice or overrides the update; and where
    its parameters or learning rate do not meet what torch asks of them.

    Args:
        choice: ``foreach`` or ``fused``.
    """

    def __init__(self, choice: str) -> None:
        super().__init__()
        self._choice = choice
        self._num_chosen = 0

    @property
    def num_applied(self) -> int:
        """Return how many optimizers were made this way."""
        return self._num_chosen

    def __enter__(self) -> chosen_optimizers:
        super().__enter__()
        for kind in _optimizers_with(self._choice):
            self.replace(kind, "__init__", self._initializer(kind))
        return self

    def _initializer(self, kind: type[torch.optim.Optimizer]) -> Callable[..., None]:
        original = kind.__init__
        signature = inspect.signature(original)
        update = inspect.unwrap(kind.step)

        @functools.wraps(original)
        def initialize(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
            except TypeError:  # torch says it better
                return original(optimizer, *args, **kwargs)
            given = bound.arguments
            # Parameters may come from a generator, which can be read only once.
            given["params"] = _kept(given["params"])
            if inspect.unwrap(type(optimizer).step) is update and self._is_possible(given):
                given[self._choice] = True
                original(*bound.args, **bound.kwargs)
                self._num_chosen += 1
                return None
            return original(*bound.args, **bound.kwargs)

        return initialize

    def _is_possible(self, given: dict[str, Any]) -> bool:
        if any(given.get(name) is not None for name in _CHOICES) or given.get("differentiable"):
            return False
        tensors = list(_tensors(given["params"]))
        if self._choice == "fused":
            return bool(tensors) and all(tensor.is_floating_point() for tensor in tensors)
        return bool(tensors) and not isinstance(given.get("lr"), torch.Tensor)


def _optimizers_with(choice: str) -> list[type[torch.optim.Optimizer]]:
    kinds = [
        kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    ]
    return [kind for kind in kinds if choice in inspect.signature(kind.__init__).parameters]


def _kept(params: Any) -> Any:
    """Return what an optimizer is given, with every generator in it read into a list."""
    if isinstance(params, torch.Tensor | dict):
        return params  # torch refuses the first, and the second is no list of groups
    groups = list(params)
    return [
        {**group, "params": list(group["params"])}
        if isinstance(group, dict) and not isinstance(group.get("params"), torch.Tensor | None)
        else group
        for group in groups
    ]


def _tensors(params: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors among parameters, named parameters and groups of either."""
    if isinstance(params, torch.Tensor):
        yield params
    elif isinstance(params, dict):
        yield from _tensors(params.get("params", ()))
    elif isinstance(params, list | tuple):
        for each in params:
            yield from _tensors(each)
