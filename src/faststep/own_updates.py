"""Steps whose loss function clears gradients, goes backward and updates by itself.

So it is where a step has several losses: an actor's and a critic's, a generator's and a
discriminator's. The function is the user's own text, with the optimizers' own methods. While it is
traced, these are replaced by what they compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.errors import FastStepError
from faststep.joint_optimizer import AnyOptimizer, JointOptimizer, owners_of, parts_of
from faststep.update_rules import Group, UpdateRule


class OwnUpdates:
    """What one run of such a function does with gradients, and whether every run does the same.

    Args:
        model: Holds all parameters, of ``named_parameters``.
        optimizer: The optimizers; it knows the user's own parameters.
        tensors: What stands for a parameter in this run, by its name in the model.
        update: Does an update with one of the optimizers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: JointOptimizer,
        tensors: dict[str, Tensor],
        update: Callable[[int], None],
    ) -> None:
        self._optimizer = optimizer
        self._tensors = tensors
        self._update = update
        names = {id(param): name for name, param in model.named_parameters()}
        self._held = [
            [names[id(param)] for group in one.param_groups for param in group["params"]]
            for one in optimizer.optimizers
        ]
        self._owned = {
            id(module): [names[id(param)] for param in module.parameters()]
            for module in model.modules()
        }
        self._modules = [module for module in model.modules() if self._owned[id(module)]]
        self._cleared: set[str] = set()
        self._used_uncleared: set[str] = set()
        self._num_updates = [0] * len(self._held)
        # Gradients by which each parameter was updated.
        self.grads: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Let the optimizers' and the modules' own methods do this run.

        Raises:
            FastStepError: At the end: one run is not like the next.
        """
        with contextlib.ExitStack() as methods:
            for number, optimizer in enumerate(self._optimizer.optimizers):
                methods.enter_context(_method(optimizer, "step", self._step(number)))
                clear = self._clear(self._held[number])
                methods.enter_context(_method(optimizer, "zero_grad", clear))
            for module in self._modules:
                clear = self._clear(self._owned[id(module)])
                methods.enter_context(_method(module, "zero_grad", clear))
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

    def _step(self, number: int) -> Callable[..., None]:
        def step(closure: object = None) -> None:
            if closure is not None:
                raise FastStepError("an update with a closure cannot be compiled")
            for name in self._held[number]:
                grad = self._tensors[name].grad
                if grad is not None:
                    self.grads[name] = grad.detach().clone()
                if name not in self._cleared:
                    self._used_uncleared.add(name)
            self._num_updates[number] += 1
            self._update(number)

        return step


def stock_update(optimizer: AnyOptimizer) -> Callable[[int], None]:
    """Return what updates with the optimizers' own code."""
    methods = [one.step for one in parts_of(optimizer)]
    return lambda number: methods[number]()


class TracedUpdates:
    """Updates of tensors in place, as the optimizers' rules say.

    Args:
        rule: That of all optimizers.
        optimizer: The optimizers.
        params: Name, number of the group, tensor, state and numbers of each trained parameter.
        groups: Options of the groups, as the rule reads them.
    """

    def __init__(
        self,
        rule: UpdateRule,
        optimizer: JointOptimizer,
        params: Sequence[tuple[str, int, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]],
        groups: Sequence[Group],
    ) -> None:
        self._rule = rule
        self._owners = owners_of(optimizer)
        self._params = params
        self._groups = groups

    def __call__(self, number: int) -> None:
        """Update with one of the optimizers.

        Raises:
            FastStepError: A parameter has no gradient, and had one in the step before.
        """
        for name, group, param, state, numbers in self._params:
            if self._owners[group] != number:
                continue
            if param.grad is None:
                raise FastStepError(f"{name} gets gradients in some steps only")
            with torch.no_grad():
                new, new_state = self._rule.update(
                    param.detach(), param.grad, state, numbers, self._groups[group]
                )
                param.copy_(new)
                for old, value in zip(state, new_state, strict=True):
                    old.copy_(value)


@contextlib.contextmanager
def _method(owner: Optimizer | nn.Module, name: str, method: Any) -> Iterator[None]:
    """Give one object another method; schedulers have put one of their own there, too."""
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
