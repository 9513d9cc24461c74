"""How a model is called on a sample batch, and what its loss is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from breakeven.errors import UsageError

LossFunction = Callable[..., torch.Tensor]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Return a batch with ``function`` applied to each tensor; mappings become plain dicts.

    Args:
        function: From tensor to tensor.
        batch: A tensor, an array, or tuples, lists and mappings of them; all else stays.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, np.ndarray):
        return function(torch.from_numpy(np.array(batch)))  # one that torch may write to
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(function, value) for value in batch)
    return batch


class ModelCall:
    """Calls a model on a batch: of a tuple or list, the model gets what it requires.

    A mapping becomes keyword arguments. Of a tuple or list, as many leading values as ``forward``
    requires become positional arguments, and the others go to ``loss_fn`` behind the output: so
    ``(x, y)`` of a data loader is ``model(x)``, then ``loss_fn(output, y)``. Anything else is the
    one argument.

    Args:
        model: Whose ``forward`` is looked at.
        loss_fn: Takes the output and the rest of the batch. By default a scalar output, or its
            ``loss`` where the output has one (transformers), or the mean of its floating-point
            tensors, summed: a stand-in that runs back through all of the model.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction | None) -> None:
        self._loss_fn = loss_fn
        self._num_inputs = _num_required(model)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a model, or of a copy of it, on a batch."""
        rest: tuple[Any, ...] = ()
        if isinstance(batch, Mapping):
            output = model(**batch)
        elif isinstance(batch, tuple | list):
            num_inputs = self._num_inputs
            if num_inputs is None:  # it takes any number: all but the target
                num_inputs = len(batch) - (self._loss_fn is not None and len(batch) > 1)
            output = model(*batch[:num_inputs])
            rest = tuple(batch[num_inputs:])
        else:
            output = model(batch)
        return self._loss_fn(output, *rest) if self._loss_fn else _default_loss(output)


def _num_required(model: nn.Module) -> int | None:
    """Return how many positional arguments ``forward`` requires; None for any number."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # compiled by TorchScript, or not Python at all
        return 1
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    # A forward whose arguments are all optional still gets one.
    return max(1, len(required))


def _default_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            found.append(tensor)
        return tensor

    map_tensors(note, output)
    if not found:
        raise UsageError(
            f"the model's output ({type(output).__name__}) has no floating-point tensor to take "
            "as a loss",
            hint="pass loss_fn=, which takes the output and returns the loss",
        )
    # What can be differentiated decides: a policy's sampled actions cannot.
    differentiable = [tensor for tensor in found if tensor.requires_grad] or found
    return sum((tensor.mean() for tensor in differentiable[1:]), differentiable[0].mean())
