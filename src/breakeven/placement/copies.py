"""Copies of a model and its optimizer on another device, with nothing shared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from breakeven.errors import UsageError

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def copy_model(model: nn.Module, device: torch.device) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy of a model on a device, and the copied tensors by the originals' ``id``.

    Parameters are copied straight to the device, so the device where they lie needs no room for
    them, and gradients are not copied.

    Args:
        model: Stays as it is.
        device: Where the copy lies.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if is_lazy(tensor):
            continue  # a lazy layer gets its shape in the first forward
        values = tensor.detach().to(device, copy=True)
        if isinstance(tensor, nn.Parameter):
            values = nn.Parameter(values, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = values
    copied = dict(memo)
    return copy.deepcopy(model, memo).to(device).train(), copied


def copy_optimizer(
    optimizer: torch.optim.Optimizer | OptimizerFactory,
    model: nn.Module,
    copied_tensors: dict[int, Any],
    device: torch.device,
) -> torch.optim.Optimizer:
    """Return an optimizer of a copied model whose updates leave the numbers as they are.

    Its learning rates are 0: the same arithmetic, but a model that is trained towards nothing in
    particular does not run away while it is timed.

    Args:
        optimizer: Of the original model, or what makes one for given parameters.
        model: The copy.
        copied_tensors: Its tensors by the originals' ``id``.
        device: Where the copy lies.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        made = optimizer(model.parameters())
    else:
        inner = getattr(optimizer, "optimizer", None)  # accelerate wraps the real one
        if isinstance(inner, torch.optim.Optimizer):
            optimizer = inner
        memo = dict(copied_tensors)
        for group in optimizer.param_groups:
            _check_owned(group["params"], copied_tensors)
            for parameter in group["params"]:
                _place_state(optimizer.state.get(parameter, {}), group, device, memo)
        made = copy.deepcopy(optimizer, memo)
        # What optimizers keep besides their state is not copied: LBFGS misses its parameters. A
        # step on the object itself is a scheduler's wrapper around the user's optimizer.
        for name, value in vars(optimizer).items():
            if name != "step" and name not in vars(made):
                setattr(made, name, copy.deepcopy(value, memo))
    for group in made.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] * 0
    return made


def _check_owned(parameters: Iterable[nn.Parameter], copied_tensors: dict[int, Any]) -> None:
    if any(id(parameter) not in copied_tensors for parameter in parameters):
        raise UsageError(
            "the optimizer has parameters that are not the model's",
            hint="pass the optimizer of this model, or none",
        )


def _place_state(
    state: dict[str, Any], group: dict[str, Any], device: torch.device, memo: dict[int, Any]
) -> None:
    """Copy the state of a parameter to where the optimizer will look for it."""
    for value in state.values():
        if isinstance(value, torch.Tensor):
            # The count of steps lies on the CPU unless it is read by a kernel.
            # Source: torch.optim.Optimizer._process_value_according_to_param_policy.
            follows = value.dim() > 0 or group.get("fused") or group.get("capturable")
            target = device if follows else torch.device("cpu")
            memo[id(value)] = value.detach().to(target, copy=True)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer, such as LBFGS, evaluates the model by itself."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
