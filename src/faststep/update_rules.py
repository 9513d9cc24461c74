"""The updates of torch's element-wise optimizers, as pure functions that a compiler can fuse.

Each rule keeps the state under the names that the stock optimizer uses, so that the state of the
one loads into the other. What changes from step to step (learning rate, bias correction) reaches
the compiled step as numbers computed here in double precision, not as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faststep.errors import FastStepError
from faststep.joint_optimizer import AnyOptimizer, parts_of

Group = Mapping[str, Any]
Scalars = tuple[Tensor, ...]
State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """How one optimizer changes a parameter.

    Args:
        options: Options of a group that choose the code, not only its numbers; for those that are
            numbers, whether they are zero.
        state_names: Names of the state tensors shaped like the parameter, for a group.
        scalars: Numbers of one step of a group, given its numbers and the count of that step, from
            1; by arithmetic alone, so that ``update_numbers.py`` can write it in C.
        update: New parameter and new state from parameter, gradient, state, scalars and group. It
            reads nothing of the group but ``options``.
    """

    options: tuple[str, ...]
    state_names: Callable[[Group], tuple[str, ...]]
    scalars: Callable[[Group, Any], tuple[Any, ...]]
    update: Callable[[Tensor, Tensor, State, Scalars, Group], tuple[Tensor, State]]

    def choices(self, group: Group) -> tuple[bool, ...]:
        """Return what the code of the update depends on: a change needs another compilation."""
        return tuple(bool(group.get(name, False)) for name in self.options)


def _sgd_state(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


def _sgd_scalars(group: Group, step: Any) -> tuple[Any, ...]:
    del step
    return group["lr"], group["momentum"], 1 - group["dampening"], group["weight_decay"]


def _sgd(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, momentum, share, weight_decay = scalars
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        grad = grad + weight_decay * param
    if group["momentum"]:
        buffer = momentum * state[0] + share * grad
        grad = grad + momentum * buffer if group["nesterov"] else buffer
        state = (buffer,)
    return param - lr * grad, state


def _adam_state(group: Group) -> tuple[str, ...]:
    names = ("exp_avg", "exp_avg_sq")
    return (*names, "max_exp_avg_sq") if group["amsgrad"] else names


def _adam_scalars(group: Group, step: Any) -> tuple[Any, ...]:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    step_size = lr / (1 - beta1**step)
    scale = (1 - beta2**step) ** -0.5
    return step_size, scale, 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"], lr


def _adam(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    step_size, scale, share1, beta2, share2, eps, weight_decay, lr = scalars
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        if group["decoupled_weight_decay"]:
            param = param * (1 - lr * weight_decay)
        else:
            grad = grad + weight_decay * param
    mean = state[0] + share1 * (grad - state[0])
    square = beta2 * state[1] + share2 * (grad * grad)
    if group["amsgrad"]:
        largest = torch.maximum(state[2], square)
        state = (mean, square, largest)
    else:
        largest = square
        state = (mean, square)
    return param - step_size * mean / (largest.sqrt() * scale + eps), state


def _rmsprop_state(group: Group) -> tuple[str, ...]:
    names = ["square_avg"]
    if group["momentum"]:
        names.append("momentum_buffer")
    if group["centered"]:
        names.append("grad_avg")
    return tuple(names)


def _rmsprop_scalars(group: Group, step: Any) -> tuple[Any, ...]:
    del step
    alpha = group["alpha"]
    return group["lr"], alpha, 1 - alpha, group["eps"], group["weight_decay"], group["momentum"]


def _rmsprop(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, alpha, share, eps, weight_decay, momentum = scalars
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        grad = grad + weight_decay * param
    named = dict(zip(_rmsprop_state(group), state, strict=True))
    square = alpha * named["square_avg"] + share * (grad * grad)
    named["square_avg"] = square
    if group["centered"]:
        mean = named["grad_avg"] + share * (grad - named["grad_avg"])
        named["grad_avg"] = mean
        square = square - mean * mean
    change = grad / (square.sqrt() + eps)
    if group["momentum"]:
        change = momentum * named["momentum_buffer"] + change
        named["momentum_buffer"] = change
    return param - lr * change, tuple(named.values())


def _adagrad_scalars(group: Group, step: Any) -> tuple[Any, ...]:
    lr = group["lr"] / (1 + (step - 1) * group["lr_decay"])
    return lr, group["eps"], group["weight_decay"]


def _adagrad(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, eps, weight_decay = scalars
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        grad = grad + weight_decay * param
    total = state[0] + grad * grad
    return param - lr * grad / (total.sqrt() + eps), (total,)


_ADAM = UpdateRule(
    options=("maximize", "weight_decay", "amsgrad", "decoupled_weight_decay"),
    state_names=_adam_state,
    scalars=_adam_scalars,
    update=_adam,
)
_RULES: dict[type[torch.optim.Optimizer], UpdateRule] = {
    torch.optim.SGD: UpdateRule(
        options=("maximize", "weight_decay", "momentum", "nesterov"),
        state_names=_sgd_state,
        scalars=_sgd_scalars,
        update=_sgd,
    ),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.RMSprop: UpdateRule(
        options=("maximize", "weight_decay", "momentum", "centered"),
        state_names=_rmsprop_state,
        scalars=_rmsprop_scalars,
        update=_rmsprop,
    ),
    torch.optim.Adagrad: UpdateRule(
        options=("maximize", "weight_decay"),
        state_names=lambda group: ("sum",),
        scalars=_adagrad_scalars,
        update=_adagrad,
    ),
}


def find_rule(optimizer: torch.optim.Optimizer) -> UpdateRule:
    """Return the rule of a stock optimizer.

    Subclasses have none: they may compute something else.

    Raises:
        FastStepError: There is none for this class, or for one of the options in use.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        names = ", ".join(sorted(kind.__name__ for kind in _RULES))
        raise FastStepError(
            f"fast_step cannot compile the update of {type(optimizer).__name__}",
            hint=f"It knows torch.optim's {names} themselves, not subclasses of them.",
        )
    if any(group.get("differentiable", False) for group in optimizer.param_groups):
        raise FastStepError(
            "fast_step cannot differentiate through the update (differentiable=True)",
            hint="Leave differentiable out, or keep the loop as it is.",
        )
    return rule


def code_options(rule: UpdateRule, group: Group, optimizer: torch.optim.Optimizer) -> Group:
    """Return a group's options as the rule reads them, AdamW's decay as an option of its own."""
    options = dict(group)
    # AdamW has carried this option itself only since torch 2.7.
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return {name: options.get(name, False) for name in rule.options} | {
        "decoupled_weight_decay": bool(decoupled)
    }


def rule_and_options(optimizer: AnyOptimizer) -> tuple[UpdateRule, tuple[Group, ...]]:
    """Return the rule of an optimizer, or of several, and the options of all groups.

    Raises:
        FastStepError: There is no rule, or there are several.
    """
    parts = parts_of(optimizer)
    rule, *others = map(find_rule, parts)
    if any(other is not rule for other in others):
        kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
        raise FastStepError(
            f"one step cannot update with optimizers of several kinds ({kinds})",
            hint="Make a step for each, or take one kind.",
        )
    options = (code_options(rule, group, part) for part in parts for group in part.param_groups)
    return rule, tuple(options)
