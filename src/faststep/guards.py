"""Checks that model, loss and optimizer are as they were at compile time; hooks.

A compiled step refuses hooks that it would skip, and calls the hooks that watch steps.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from faststep.errors import FastStepError
from faststep.fast_path import Check, Guard
from faststep.several import AnyOptimizer, parts_of
from faststep.updates import UpdateRule

# Private names of torch 2.13: there is no public API to find hooks.
_PARAM_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_TRAINING = attrgetter("training")
# Attributes of a parameter: hooks are refused; requires_grad changes the compiled code.
_FACTS = ("requires_grad", *_PARAM_HOOKS)
_PARAM_FACTS = attrgetter(*_FACTS)
_PARTS = ("_parameters", "_buffers", "_modules")


class Guards:
    """A record of modules, their modes, trained parameters and options of the optimizer.

    A small step takes some microseconds, so the check must be cheap: it compares lists, or the
    fast path evaluates ``guards``.

    Args:
        model: The model.
        loss_fn: The loss; if it is a module, then the record includes its modules.
        optimizer: The optimizer.
        rule: The optimizer's rule.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: AnyOptimizer, rule: UpdateRule
    ) -> None:
        self._modules = list(model.modules())
        if isinstance(loss_fn, nn.Module):
            self._modules += loss_fn.modules()
        self._params = list(model.parameters())
        self._optimizer = optimizer
        self._rule = rule
        # The dicts that hold hooks: empty unless there are some.
        self._hooks = [module.__dict__[name] for module in self._modules for name in _MODULE_HOOKS]
        self._hooks += self._optimizer_hooks()
        self._training = list(map(_TRAINING, self._modules))
        self._places = [module.__dict__[part] for module in self._modules for part in _PARTS]
        self._parts = self._read_parts()
        self._param_facts = list(map(_PARAM_FACTS, self._params))
        self._options = self._read_options()
        self._choices = self._read_choices()
        facts = repr((self._training, self._param_facts, self._choices))
        # Include the modules: a replacement may compute something else.
        self.key = (facts, *self._modules)

    def _optimizer_hooks(self) -> list[Any]:
        parts = parts_of(self._optimizer)
        return [getattr(one, name, None) for one in parts for name in _OPTIMIZER_HOOKS]

    def _read_parts(self) -> list[Any]:
        groups = (group["params"] for group in self._optimizer.param_groups)
        return [*chain.from_iterable(map(dict.values, self._places)), *chain.from_iterable(groups)]

    def _read_options(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._optimizer.param_groups)))

    def _read_choices(self) -> list[tuple[bool, ...]]:
        return [self._rule.choices(group) for group in self._optimizer.param_groups]

    def hold(self) -> bool:
        """Whether nothing has changed except numbers such as the learning rate."""
        if (
            any(self._hooks)
            or list(map(_TRAINING, self._modules)) != self._training
            or not _are_same(self._read_parts(), self._parts)
            or list(map(_PARAM_FACTS, self._params)) != self._param_facts
        ):
            return False
        options = self._read_options()
        if not _are_same(options, self._options):
            if self._read_choices() != self._choices:
                return False
            self._options = options
        return True

    def guards(self, places: Mapping[tuple[int, str], int]) -> Iterator[Guard]:
        """Yield the same checks as guards of the fast path; also that no hook watches steps.

        Args:
            places: Addresses for the numbers of groups, by group number and name. Options that
                select the compiled code must not change.
        """
        yield Check.ITEM, self._optimizer.__dict__, "_opt_called", True
        yield Check.SIZE, _global_optimizer_post_hooks, None, 0
        for place in self._hooks:
            yield Check.SIZE, place, None, 0
        for module, training in zip(self._modules, self._training, strict=True):
            yield Check.ITEM, module.__dict__, "training", training
        for place in self._places:
            yield Check.SIZE, place, None, len(place)
            for name, part in place.items():
                yield Check.ITEM, place, name, part
        for param, facts in zip(self._params, self._param_facts, strict=True):
            for name, fact in zip(_FACTS, facts, strict=True):
                yield Check.ATTRIBUTE, param, name, fact
        groups = self._optimizer.param_groups
        yield Check.ITEM, self._optimizer.__dict__, "param_groups", groups
        yield Check.ELEMENTS, groups, None, list(groups)
        for number, group in enumerate(groups):
            yield Check.SIZE, group, None, len(group)
            for name, value in group.items():
                place = places.get((number, name))
                if place is None or name in self._rule.options:
                    yield Check.ITEM, group, name, value
                else:
                    yield Check.NUMBER, group, name, place
            yield Check.ELEMENTS, group["params"], None, list(group["params"])

    def refuse_hooks(self) -> None:
        """Raise an error if the model or the optimizer has hooks.

        Raises:
            FastStepError: The model or the optimizer has a hook.
        """
        lost = "has hooks, which a compiled step would run once and never again"
        hint = "Remove them, or keep the loop as it is."
        for module in self._modules:
            kind = type(module).__name__
            if any(module.__dict__[name] for name in _MODULE_HOOKS):
                raise FastStepError(f"a {kind} of the model {lost}", hint=hint)
            for name, param in module.named_parameters(recurse=False):
                if any(getattr(param, hooks, None) for hooks in _PARAM_HOOKS):
                    raise FastStepError(f"the parameter {name} of a {kind} {lost}", hint=hint)
        if any(self._optimizer_hooks()):
            raise FastStepError(
                "the optimizer has step hooks, and a compiled step never calls optimizer.step()",
                hint="Remove them, and call their functions after each step.",
            )


def _are_same(found: list[Any], known: list[Any]) -> bool:
    return len(found) == len(known) and all(map(operator.is_, found, known))


def call_step_hooks(optimizer: AnyOptimizer, num_steps: int) -> None:
    """Call the global post-step hooks of optimizers, once for each optimizer and step."""
    # Set _opt_called: a scheduler warns if it steps before its optimizer.
    parts = parts_of(optimizer)
    for part in parts:
        part._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
    if _global_optimizer_post_hooks:
        for part in parts * num_steps:
            for hook in tuple(_global_optimizer_post_hooks.values()):
                hook(part, (), {})


@contextmanager
def unwatched_steps() -> Iterator[None]:
    """Disable the global step hooks of optimizers inside the context.

    The hooks count the user's steps; timed steps must not count.
    """
    all_hooks: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    kept = [dict(hooks) for hooks in all_hooks]
    for hooks in all_hooks:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(all_hooks, kept, strict=True):
            hooks.clear()
            hooks.update(before)
