"""What a compiled step was made for, and whether it is still so: asked before each call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from torch import nn
from torch.optim import Optimizer

from breakeven.whole_step.hooks import hook_places
from breakeven.whole_step.update_rules import UpdateRule

_TRAINING = attrgetter("training")
# Of a parameter: hooks are refused, whatever is trained decides what is compiled.
_PARAM_FACTS = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")


class Situation:
    """Modes of modules, trained parameters and options of the optimizer, at one time.

    A small step takes some microseconds, so that asking must not take more: everything that is the
    same is found by comparing lists.

    Args:
        modules: Of model and loss.
        params: The model's parameters.
        optimizer: The optimizer.
        rule: Its rule.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        params: Sequence[nn.Parameter],
        optimizer: Optimizer,
        rule: UpdateRule,
    ) -> None:
        self._modules = modules
        self._params = params
        self._optimizer = optimizer
        self._rule = rule
        self._hooks = hook_places(modules, optimizer)
        self._training = list(map(_TRAINING, modules))
        self._param_facts = list(map(_PARAM_FACTS, params))
        self._options = self._read_options()
        self._choices = self._read_choices()
        self.key = repr((self._training, self._param_facts, self._choices))

    def _read_options(self) -> list[list[object]]:
        return [list(group.values()) for group in self._optimizer.param_groups]

    def _read_choices(self) -> list[tuple[bool, ...]]:
        return [self._rule.choices(group) for group in self._optimizer.param_groups]

    def is_same(self) -> bool:
        """Return whether nothing of it has changed, but numbers such as the learning rate."""
        if (
            any(self._hooks)
            or list(map(_TRAINING, self._modules)) != self._training
            or list(map(_PARAM_FACTS, self._params)) != self._param_facts
        ):
            return False
        options = self._read_options()
        if options == self._options:
            return True
        if self._read_choices() != self._choices:
            return False
        self._options = options
        return True
