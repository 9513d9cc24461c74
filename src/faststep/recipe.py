"""What is computed in a step, and its loss: with the model's own tensors, or with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from faststep.joint_optimizer import JointOptimizer
from faststep.results import AuxLayout
from faststep.update_rules import Group, UpdateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is computed in a step, apart from the tensors.

    Args:
        model: The model.
        loss_fn: The loss of output and targets.
        rule: The optimizer's update.
        groups: Options of the optimizer's groups, as the rule reads them.
        max_grad_norm: Largest norm of all gradients together; None for any.
        autocast: Number format of an autocast region around model and loss; None for none.
        aux: How what the loss function returns beside the loss goes together; None where it
            returns the loss alone.
        updating: The optimizers, where the loss function updates with them by itself.
    """

    model: nn.Module
    loss_fn: Any
    rule: UpdateRule
    groups: tuple[Group, ...]
    max_grad_norm: float | None
    autocast: torch.dtype | None
    aux: AuxLayout | None = None
    updating: JointOptimizer | None = None


def compute_loss(
    recipe: Recipe,
    inputs: Any,
    targets: Any,
    tensors: dict[str, Tensor],
    of_loss: dict[str, Tensor],
    device_type: str,
) -> tuple[Tensor, ...]:
    """Return the loss and what comes beside it.

    Args:
        recipe: What is computed.
        inputs: What the model takes.
        targets: What the loss takes beside the model's output.
        tensors: Other parameters and buffers than the model's own; none for its own.
        of_loss: The same of the loss, where it is a module.
        device_type: That of the autocast region.
    """
    dtype = recipe.autocast
    with torch.autocast(device_type, dtype=dtype, enabled=dtype is not None):
        output = call_model(recipe.model, inputs, tensors)
        if of_loss:
            returned = _call_with(recipe.loss_fn, of_loss, (output, targets))
        else:
            returned = recipe.loss_fn(output, targets)
    return (returned,) if recipe.aux is None else recipe.aux.split(returned)


def call_model(model: torch.nn.Module, inputs: Any, tensors: dict[str, Tensor]) -> Any:
    """Call a model with other parameters and buffers than its own.

    Args:
        model: The model.
        inputs: Its only argument; or a tuple or a dict of arguments.
        tensors: Parameters and buffers by their names; none for its own.
    """
    args = tuple(inputs) if isinstance(inputs, tuple | list) else ()
    kwargs = inputs if isinstance(inputs, dict) else {}
    if not args and not kwargs:
        args = (inputs,)
    if not tensors:
        return model(*args, **kwargs)
    return _call_with(model, tensors, args, kwargs)


def _call_with(
    module: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: Any = None
) -> Any:
    """Call a module with other tensors than its own, wherever it has one of them.

    Torch's own search for tied tensors does not put back those of a module that has two names: each
    place is named here just once.
    """
    owned = (*module.named_parameters(), *module.named_buffers())
    names = {id(tensor): name for name, tensor in owned}
    places: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        for named in (part.named_parameters, part.named_buffers):
            for place, tensor in named(prefix, recurse=False, remove_duplicate=False):
                if names[id(tensor)] in tensors:
                    places[place] = tensors[names[id(tensor)]]
    return torch.func.functional_call(module, places, args, kwargs, tie_weights=False)
