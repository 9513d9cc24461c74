"""The updates of torch's element-wise optimizers, as pure functions that a compiler can fuse.

Each rule uses the stock optimizer's names of state tensors, so that either loads the other's
state. Numbers that change from step to step (learning rate, bias correction) are arguments of the
compiled step, computed here in double precision, not constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faststep.errors import FastStepError

Group = Mapping[str, Any]
Scalars = tuple[Tensor, ...]
State = tuple[Tensor, ...]
# Group number, name, and the index in a tuple or None.
Option = tuple[int, str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """How one optimizer changes a parameter.

    Args:
        options: Options of a group that select the code, not only its numbers; a numeric option
            selects it by being zero or not.
        state_names: Returns the names of a group's state tensors with the parameter's shape.
        scalars: Returns the numbers of one step of a group from its options and the step count,
            from 1. It uses only arithmetic, so that ``UpdateNumbers`` can write it in C.
        update: Returns new parameter and new state from parameter, gradient, state, scalars and
            group. It reads only ``options`` of the group.
    """

    options: tuple[str, ...]
    state_names: Callable[[Group], tuple[str, ...]]
    scalars: Callable[[Group, Any], tuple[Any, ...]]
    update: Callable[[Tensor, Tensor, State, Scalars, Group], tuple[Tensor, State]]

    def choices(self, group: Group) -> tuple[bool, ...]:
        """Return the options that select the update's code: a change needs a new compilation."""
        return tuple(bool(group.get(name, False)) for name in self.options)


def _prepared(param: Tensor, grad: Tensor, weight_decay: Tensor, group: Group) -> Tensor:
    """Return the gradient, negated to maximize, plus weight decay unless that is decoupled."""
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"] and not group["decoupled_weight_decay"]:
        grad = grad + weight_decay * param
    return grad


def _sgd(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, momentum, share, weight_decay = scalars
    grad = _prepared(param, grad, weight_decay, group)
    if group["momentum"]:
        buffer = momentum * state[0] + share * grad
        grad = grad + momentum * buffer if group["nesterov"] else buffer
        state = (buffer,)
    return param - lr * grad, state


def _adam_scalars(group: Group, step: Any) -> tuple[Any, ...]:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    step_size = lr / (1 - beta1**step)
    scale = (1 - beta2**step) ** -0.5
    return step_size, scale, 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"], lr


def _adam(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    step_size, scale, share1, beta2, share2, eps, weight_decay, lr = scalars
    grad = _prepared(param, grad, weight_decay, group)
    if group["weight_decay"] and group["decoupled_weight_decay"]:
        param = param * (1 - lr * weight_decay)
    mean = state[0] + share1 * (grad - state[0])
    square = beta2 * state[1] + share2 * (grad * grad)
    largest, old, state = square, state, (mean, square)
    if group["amsgrad"]:
        largest = torch.maximum(old[2], square)
        state = (mean, square, largest)
    return param - step_size * mean / (largest.sqrt() * scale + eps), state


def _rmsprop_state(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if group["momentum"] else ()
    return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))


def _rmsprop(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, alpha, share, eps, weight_decay, momentum = scalars
    grad = _prepared(param, grad, weight_decay, group)
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


def _adagrad(
    param: Tensor, grad: Tensor, state: State, scalars: Scalars, group: Group
) -> tuple[Tensor, State]:
    lr, eps, weight_decay = scalars
    grad = _prepared(param, grad, weight_decay, group)
    total = state[0] + grad * grad
    return param - lr * grad / (total.sqrt() + eps), (total,)


_ADAM = UpdateRule(
    options=("maximize", "weight_decay", "amsgrad", "decoupled_weight_decay"),
    state_names=lambda group: ("exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * group["amsgrad"]),
    scalars=_adam_scalars,
    update=_adam,
)
_RULES: dict[type[torch.optim.Optimizer], UpdateRule] = {
    torch.optim.SGD: UpdateRule(
        options=("maximize", "weight_decay", "momentum", "nesterov"),
        state_names=lambda group: ("momentum_buffer",) if group["momentum"] else (),
        scalars=lambda g, _: (g["lr"], g["momentum"], 1 - g["dampening"], g["weight_decay"]),
        update=_sgd,
    ),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.RMSprop: UpdateRule(
        options=("maximize", "weight_decay", "momentum", "centered"),
        state_names=_rmsprop_state,
        scalars=lambda g, _: (
            g["lr"],
            g["alpha"],
            1 - g["alpha"],
            g["eps"],
            g["weight_decay"],
            g["momentum"],
        ),
        update=_rmsprop,
    ),
    torch.optim.Adagrad: UpdateRule(
        options=("maximize", "weight_decay"),
        state_names=lambda _: ("sum",),
        scalars=lambda g, step: (
            g["lr"] / (1 + (step - 1) * g["lr_decay"]),
            g["eps"],
            g["weight_decay"],
        ),
        update=_adagrad,
    ),
}


def find_rule(optimizer: torch.optim.Optimizer) -> UpdateRule:
    """Return the rule of a stock optimizer.

    Subclasses have no rule: they may compute something else.

    Raises:
        FastStepError: This class, or one of the options in use, has no rule.
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


class NumbersOf(dict[str, Any]):
    """Options of a group as floats, converted on access, since they may be tensors."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, name: str) -> Any:
        value = self._group[name]
        return tuple(map(float, value)) if isinstance(value, tuple | list) else float(value)


class _Formula:
    """A C expression of a number in double precision."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> _Formula:
        return _Formula(f"({self} + {other})")

    def __radd__(self, other: Any) -> _Formula:
        return _Formula(f"({other} + {self})")

    def __sub__(self, other: Any) -> _Formula:
        return _Formula(f"({self} - {other})")

    def __rsub__(self, other: Any) -> _Formula:
        return _Formula(f"({other} - {self})")

    def __mul__(self, other: Any) -> _Formula:
        return _Formula(f"({self} * {other})")

    def __truediv__(self, other: Any) -> _Formula:
        return _Formula(f"({self} / {other})")

    def __pow__(self, other: Any) -> _Formula:
        return _Formula(f"pow({self}, {other})")


class _FormulasOf(dict[str, Any]):
    """Options of a group as formulas; reading an option gives it a place in the C code's array."""

    def __init__(self, number: int, group: Group, options: list[Option]) -> None:
        super().__init__()
        self._number, self._group, self._options = number, group, options

    def __missing__(self, name: str) -> Any:
        value = self._group[name]
        is_tuple = isinstance(value, tuple | list)
        found: list[_Formula] = []
        for index in range(len(value)) if is_tuple else (None,):
            found.append(_Formula(f"options[{len(self._options)}]"))
            self._options.append((self._number, name, index))
        self[name] = tuple(found) if is_tuple else found[0]
        return self[name]


class UpdateNumbers:
    """C code that computes the numbers of the next update of all packs.

    Args:
        rule: The optimizer's rule.
        groups: The optimizer's groups.
        packs: Group number of each pack.
    """

    def __init__(self, rule: UpdateRule, groups: Sequence[Group], packs: Sequence[int]) -> None:
        # The options that the C code reads, in its order.
        self.options: list[Option] = []
        texts: list[str] = []
        for number, place in enumerate(packs):
            formulas = _FormulasOf(place, groups[place], self.options)
            texts += map(str, rule.scalars(formulas, _Formula(f"(*counts[{number}] + 1.0)")))
        self.width = len(texts)
        self._lines = [f"  out[{number}] = {text};\n" for number, text in enumerate(texts)]

    def source(self, c_type: str) -> str:
        """Return the definition of ``update_numbers``, which writes numbers of this C type."""
        head = "static void update_numbers(const double *options, float *const *counts, "
        return f"{head}{c_type} *out) {{\n{''.join(self._lines)}}}\n"

    def values(self, groups: Sequence[Group]) -> list[float]:
        """Return the current values of the options."""
        values = ((groups[place][name], index) for place, name, index in self.options)
        return [float(value if index is None else value[index]) for value, index in values]
