"""Steps that update with several optimizers, such as those of an actor and a critic.

The user's loss function calls ``zero_grad``, ``backward`` and ``step`` itself. Tracing replaces
the optimizers' methods by their computations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.errors import FastStepError
from faststep.updates import Group, UpdateRule, find_rule


class JointOptimizer:
    """The groups and the state of several optimizers.

    Args:
        optimizers: The user's list of optimizers; a step updates once with each.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        self._state = _JointState(tuple(one.state for one in self.optimizers))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers, in their order."""
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> Any:
        """The state of all optimizers: the same object until the state of one is replaced."""
        states = tuple(one.state for one in self.optimizers)
        if any(one is not known for one, known in zip(states, self._state.parts, strict=True)):
            self._state = _JointState(states)
        return self._state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all optimizers."""
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


class _JointState(Mapping[Any, Any]):
    """The states of the parameters of several optimizers."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __getitem__(self, param: Any) -> Any:
        for part in self.parts:
            if param in part:  # test first: the defaultdict adds an entry for a missing key
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
        """Return all values without a lookup for each key."""
        return list(chain.from_iterable(part.values() for part in self.parts))


AnyOptimizer = Optimizer | JointOptimizer


def parts_of(optimizer: AnyOptimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers of a joint optimizer, or the one of torch itself."""
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else (optimizer,)


def owners_of(optimizer: AnyOptimizer) -> list[int]:
    """Return the number of each group's optimizer."""
    return [number for number, one in enumerate(parts_of(optimizer)) for _ in one.param_groups]


def rule_and_options(optimizer: AnyOptimizer) -> tuple[UpdateRule, tuple[Group, ...]]:
    """Return the common rule of all optimizers, and the options of all groups.

    Options are those that the rule reads, plus ``decoupled_weight_decay``.

    Raises:
        FastStepError: An optimizer has no rule, or two have different rules.
    """
    parts = parts_of(optimizer)
    rule, *others = map(find_rule, parts)
    if any(other is not rule for other in others):
        kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
        raise FastStepError(
            f"one step cannot update with optimizers of several kinds ({kinds})",
            hint="Make a step for each, or take one kind.",
        )
    options: list[Group] = []
    for part in parts:
        # AdamW has this option only since torch 2.7.
        is_adamw = isinstance(part, torch.optim.AdamW)
        for group in part.param_groups:
            is_decoupled = bool(group.get("decoupled_weight_decay", is_adamw))
            named = {name: group.get(name, False) for name in rule.options}
            options.append(named | {"decoupled_weight_decay": is_decoupled})
    return rule, tuple(options)


class OwnUpdates:
    """One run of a loss function that updates: records gradients, refuses runs that cannot repeat.

    Args:
        model: Holds all parameters.
        optimizer: The optimizers of the user's parameters.
        tensors: The tensor of each parameter in this run, by its name in the model.
        update: Does an update with the optimizer of a number; None for the optimizers' own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: JointOptimizer,
        tensors: dict[str, Tensor],
        update: Callable[[int], None] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._tensors = tensors
        own_steps = [one.step for one in optimizer.optimizers]
        self._update = update or (lambda number: own_steps[number]())
        self._cleared: set[str] = set()
        self._used_uncleared: set[str] = set()
        self._num_updates = [0] * len(optimizer.optimizers)
        # The gradient of each updated parameter.
        self.grads: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace ``step`` and ``zero_grad`` of optimizers and modules for this run.

        Raises:
            FastStepError: An optimizer does not step exactly once, or old gradients are not
                cleared; the next run would then differ.
        """
        names = {id(param): name for name, param in self._model.named_parameters()}
        with contextlib.ExitStack() as methods:
            for number, optimizer in enumerate(self._optimizer.optimizers):
                held = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
                methods.enter_context(_method(optimizer, "step", self._step(number, held)))
                methods.enter_context(_method(optimizer, "zero_grad", self._clear(held)))
            for module in self._model.modules():
                if owned := [names[id(param)] for param in module.parameters()]:
                    methods.enter_context(_method(module, "zero_grad", self._clear(owned)))
            yield
        for number, count in enumerate(self._num_updates):
            if count != 1:
                raise FastStepError(
                    f"the step updates {count} times with optimizer {number}: it must be once",
                    hint="Give fast_step the optimizers that each step updates with.",
                )
        left = {name for name, tensor in self._tensors.items() if tensor.grad is not None}
        if kept := min(left & self._used_uncleared, default=""):
            raise FastStepError(
                f"gradients of {kept} are not cleared before the update: they come from the step "
                "before too",
                hint="Call zero_grad of that optimizer in the step.",
            )

    def _clear(self, names: Sequence[str]) -> Callable[..., None]:
        def zero_grad(set_to_none: bool = True) -> None:
            if not set_to_none:
                raise FastStepError(
                    "gradients are set to zero, which updates parameters that have none",
                    hint="Call zero_grad() without set_to_none=False.",
                )
            for name in names:
                self._tensors[name].grad = None
            self._cleared.update(names)

        return zero_grad

    def _step(self, number: int, names: Sequence[str]) -> Callable[..., None]:
        def step(closure: object = None) -> None:
            if closure is not None:
                raise FastStepError("an update with a closure cannot be compiled")
            for name in names:
                grad = self._tensors[name].grad
                if grad is not None:
                    self.grads[name] = grad.detach().clone()
            self._used_uncleared.update(set(names) - self._cleared)
            self._num_updates[number] += 1
            self._update(number)

        return step


@contextlib.contextmanager
def _method(owner: Optimizer | nn.Module, name: str, method: Any) -> Iterator[None]:
    """Replace a method of one object; restore one that a scheduler has put there."""
    own = owner.__dict__
    before = own.get(name)
    own[name] = method
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before
