"""Several optimizers seen as one, for steps that update with each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torch.optim import Optimizer


class JointOptimizer:
    """The groups and the state of several optimizers.

    Args:
        optimizers: In the order in which a step updates with them, each once.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        self._state = _JointState(tuple(one.state for one in self.optimizers))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of all of them, those of the first one first."""
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> Any:
        """Return the state of all of them: the same object until one of them gets another one."""
        if any(
            one.state is not known
            for one, known in zip(self.optimizers, self._state.parts, strict=True)
        ):
            self._state = _JointState(tuple(one.state for one in self.optimizers))
        return self._state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all of them."""
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


AnyOptimizer = Optimizer | JointOptimizer


def parts_of(optimizer: AnyOptimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers that one consists of; itself, where it is one of torch's."""
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else (optimizer,)


def owners_of(optimizer: AnyOptimizer) -> list[int]:
    """Return which of its optimizers each group belongs to, by its number."""
    return [number for number, one in enumerate(parts_of(optimizer)) for _ in one.param_groups]


class _JointState(Mapping[Any, Any]):
    """The states of parameters that different optimizers hold."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __getitem__(self, param: Any) -> Any:
        for part in self.parts:
            if param in part:  # they make an entry for whatever they are asked
                return part[param]
        raise KeyError(param)

    def __delitem__(self, param: Any) -> None:
        for part in self.parts:
            part.pop(param, None)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def values(self) -> Any:
        """Return what ``dict.values`` would, without a search for each."""
        return list(chain.from_iterable(part.values() for part in self.parts))
