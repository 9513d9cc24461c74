"""What goes into a step besides the model: inputs and targets, as a flat list of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and targets of a step, or of a whole data set, taken apart.

    Args:
        tensors: The tensors in them.
        others: Everything else in them, such as flags; part of what a compiled step is made for.
        layout: How the two go together again.
    """

    tensors: tuple[Tensor, ...]
    others: tuple[Any, ...]
    layout: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step depends on."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.tensors)
        return shapes, self.others, self.layout

    def rebuild(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """Return inputs and targets with other tensors in the place of these."""
        if self.layout is None:
            return tensors[0], tensors[1]
        rest, others = iter(tensors), iter(self.others)
        is_tensor, spec = self.layout
        leaves = [next(rest) if given else next(others) for given in is_tensor]
        return pytree.tree_unflatten(leaves, spec)


def take_apart(inputs: Any, targets: Any) -> Batch:
    """Return a batch; the usual one, of two tensors, without a look into containers."""
    if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
        return Batch((inputs, targets), (), None)
    leaves, spec = pytree.tree_flatten((inputs, targets))
    is_tensor = tuple(isinstance(leaf, Tensor) for leaf in leaves)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    others = tuple(leaf for leaf in leaves if not isinstance(leaf, Tensor))
    return Batch(tensors, others, (is_tensor, spec))


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
    return torch.func.functional_call(model, tensors, args, kwargs)
