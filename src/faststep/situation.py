"""What a compiled step was made for, and whether it is still so: asked before each call."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from faststep.hooks import hook_places
from faststep.joint_optimizer import AnyOptimizer
from faststep.quick_call import Check, Guard
from faststep.update_rules import UpdateRule

_TRAINING = attrgetter("training")
# Of a parameter: hooks are refused, whatever is trained decides what is compiled.
_FACTS = ("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_PARAM_FACTS = attrgetter(*_FACTS)
_PARTS = ("_parameters", "_buffers", "_modules")


class Situation:
    """Modules, their modes, trained parameters and options of the optimizer, at one time.

    A small step takes some microseconds, so that asking must not take more: everything that is the
    same is found by comparing lists; or by ``QuickCall``, from ``guards``.

    Args:
        model: The model.
        loss_fn: The loss; its modules count too, where it is one.
        optimizer: The optimizer.
        rule: Its rule.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: AnyOptimizer, rule: UpdateRule
    ) -> None:
        self.modules = list(model.modules())
        if isinstance(loss_fn, nn.Module):
            self.modules += loss_fn.modules()
        self._params = list(model.parameters())
        self._optimizer = optimizer
        self._rule = rule
        self._hooks = hook_places(self.modules, optimizer)
        self._training = list(map(_TRAINING, self.modules))
        self._places = [module.__dict__[part] for module in self.modules for part in _PARTS]
        self._parts = self._read_parts()
        self._param_facts = list(map(_PARAM_FACTS, self._params))
        self._options = self._read_options()
        self._choices = self._read_choices()
        facts = repr((self._training, self._param_facts, self._choices))
        # Modules themselves: another one in the place of one may compute something else.
        self.key = (facts, *self.modules)

    def _read_parts(self) -> list[Any]:
        groups = (group["params"] for group in self._optimizer.param_groups)
        return [*chain.from_iterable(map(dict.values, self._places)), *chain.from_iterable(groups)]

    def _read_options(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._optimizer.param_groups)))

    def _read_choices(self) -> list[tuple[bool, ...]]:
        return [self._rule.choices(group) for group in self._optimizer.param_groups]

    def is_same(self) -> bool:
        """Return whether nothing of it has changed, but numbers such as the learning rate."""
        if (
            any(self._hooks)
            or list(map(_TRAINING, self.modules)) != self._training
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
        """Yield what must hold for all of it to be the same.

        Args:
            places: Where numbers of groups are to be written, by number of the group and name;
                those that decide what is compiled must stay as they are.
        """
        for place in self._hooks:
            yield Check.SIZE, place, None, 0
        for module, training in zip(self.modules, self._training, strict=True):
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


def _are_same(found: list[Any], known: list[Any]) -> bool:
    return len(found) == len(known) and all(map(operator.is_, found, known))
