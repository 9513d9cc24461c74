"""The tensors of model and optimizer as arguments of compiled steps."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from breakeven.whole_step.step_function import make_packs
from breakeven.whole_step.tensors import StepTensors
from breakeven.whole_step.update_rules import UpdateRule


class BoundTensors:
    """The tensors of model and optimizer, as arguments of compiled steps.

    Args:
        tensors: What was read from model and optimizer.
        optimizer: The optimizer.
        rule: The optimizer's rule.
    """

    def __init__(self, tensors: StepTensors, optimizer: Optimizer, rule: UpdateRule) -> None:
        self.tensors = tensors
        self.packs = make_packs(tensors)
        self.arguments = tensors.written
        self._optimizer = optimizer
        self._rule = rule
        owned = [one.param for one in tensors.trained]
        self._owned = [*owned, *tensors.fixed]
        self._places = [tensor.data_ptr() for tensor in self._owned]
        self._counters = list(tensors.counters)
        # One counter of each pack: all of it has had as many steps.
        self._first = [pack.members[0].counter for pack in self.packs]
        has_double = any(param.dtype == torch.float64 for param in owned)
        self._dtype = torch.float64 if has_double else torch.float32
        self._device = owned[0].device

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step depends on, of these tensors."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.arguments)
        packs = tuple((p.group, tuple(one.name for one in p.members)) for p in self.packs)
        return shapes, packs, self.tensors.fixed_names

    def is_current(self) -> bool:
        """Return whether model and optimizer still use these tensors."""
        places = [tensor.data_ptr() for tensor in self._owned]
        return places == self._places and self.tensors.is_current(self._optimizer)

    def numbers(self, num_steps: int) -> Tensor:
        """Return the numbers of the next updates, one row for each step."""
        groups = self._optimizer.param_groups
        done = [0 if counter is None else int(counter.item()) for counter in self._first]
        rows = [
            tuple(
                itertools.chain.from_iterable(
                    self._rule.scalars(groups[pack.group], count + 1 + number)
                    for pack, count in zip(self.packs, done, strict=True)
                )
            )
            for number in range(num_steps)
        ]
        return torch.tensor(rows, dtype=self._dtype, device=self._device)

    def count(self, num_steps: int) -> None:
        """Tell the optimizer that so many steps were done."""
        if self._counters:  # as the stock optimizers count: one call for all of them
            torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
                self._counters, num_steps
            )
