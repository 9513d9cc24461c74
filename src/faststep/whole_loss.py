"""A loss function that calls the model itself, as a model whose output is the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class WholeLoss(nn.Module):
    """All that a loop does from its batch to the loss.

    Args:
        model: The model that is trained.
        loss_fn: Calls it. Gets what the step is called with.
    """

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *inputs: Any) -> Any:
        """Return what the loss function returns."""
        return self.loss_fn(*inputs)


def as_output(output: Any, _: Any) -> Any:
    """Return the output: the loss, of a model that computes it."""
    return output
