"""A model with a batch and a loss: what every kind of workload is built into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStep:
    """A model at one batch size, ready to run.

    Args:
        model: Its parameters are what the optimizer updates.
        inputs: Tensors of the batch that the model takes.
        targets: Tensors of the batch that only the loss takes.
        forward: Calls the model with the inputs.
        loss: Turns the result of ``forward`` into what ``backward`` starts from. What is not a
            scalar starts from a gradient of ones.
        uses_training_mode: Whether dropout and batch statistics are on, outside of inference.
        keeps_gradients: Whether the loop neither zeroes nor releases gradients, which add up then.
        max_grad_norm: Norm to which gradients are clipped before the update, if they are.
        reads_loss: Whether the script reads the loss back in each step.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    forward: Callable[[], Any]
    loss: Callable[[Any], torch.Tensor]
    uses_training_mode: bool = True
    keeps_gradients: bool = False
    max_grad_norm: float | None = None
    reads_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLoop:
    """A whole step of the user's own, of which nothing is known but that it can be called.

    Args:
        step: One training step.
    """

    step: Callable[[], object]


Built = BuiltStep | BuiltLoop

# Called with a batch size, once the model exists.
StepFactory = Callable[[int], Built]
