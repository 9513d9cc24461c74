"""What is computed in a step, and its loss: with the model's own tensors, or with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError
from faststep.several import JointOptimizer
from faststep.updates import Group, UpdateRule


class AuxLayout:
    """How the tensors that a loss function returns beside the loss go together.

    Learnt in the first step, then fixed.
    """

    def __init__(self) -> None:
        self._spec: Any = None

    def split(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the loss, and the tensors beside it in order.

        Raises:
            FastStepError: It is no pair, holds something else than tensors, or goes together in
                another way than in the first step.
        """
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise FastStepError(
                "with has_aux=True the loss function must return the pair (loss, aux); it returned "
                f"{type(returned).__name__}"
            )
        loss, aux = returned
        leaves, spec = pytree.tree_flatten(aux)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise FastStepError(
                    f"aux holds {type(leaf).__name__}: it must hold only tensors",
                    hint="Other values would stay those of the first step.",
                )
        if self._spec is None:
            self._spec = spec
        elif spec != self._spec:
            raise FastStepError("aux has another structure than in the first step")
        return loss, *leaves

    def rebuild(self, leaves: Sequence[Tensor]) -> Any:
        """Put the tensors together as the loss function did."""
        return pytree.tree_unflatten(list(leaves), self._spec)


def detached(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the loss, and copies of what comes beside it: an update may write to that."""
    loss, *beside = (one.detach() for one in results)
    return loss, *(one.clone() for one in beside)


def stack_results(results: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Stack the losses of several steps, and what comes beside them."""
    return tuple(torch.stack(one) for one in zip(*results, strict=True))


class WholeLoss(nn.Module):
    """A loss function that calls the model, as a model whose output is the loss."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *inputs: Any) -> Any:
        """Call the loss function with what the step is called with."""
        return self.loss_fn(*inputs)


def as_output(output: Any, _: Any) -> Any:
    """Return the output: the loss, of a model that computes it."""
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is computed in a step, apart from the tensors.

    Args:
        model: The model.
        loss_fn: The loss of output and targets.
        rule: The optimizer's update.
        groups: Options of the optimizer's groups, as the rule reads them.
        max_grad_norm: Largest norm of all gradients together; None for any.
        autocast: Number format of an autocast region around model and loss.
        aux: Layout of what the loss function returns beside the loss; None for the loss alone.
        updating: The optimizers that the loss function itself updates with.
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
    """Compute the loss and what comes beside it.

    Args:
        recipe: What is computed.
        inputs: What the model takes.
        targets: What the loss takes beside the model's output.
        tensors: Other parameters and buffers than the model's own; none for its own.
        of_loss: The same of the loss, if it is a module.
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


def call_model(model: nn.Module, inputs: Any, tensors: dict[str, Tensor]) -> Any:
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
