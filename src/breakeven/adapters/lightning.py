"""The accelerator for Lightning's Trainer, found without importing Lightning."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import nn

from breakeven.placement import LossFunction, OptimizerFactory, auto

_ACCELERATORS: dict[str, Literal["cpu", "gpu", "mps"]] = {"cuda": "gpu", "mps": "mps"}


def accelerator(
    model: nn.Module,
    sample_batch: Any,
    *,
    optimizer: torch.optim.Optimizer | OptimizerFactory | None = None,
    loss_fn: LossFunction | None = None,
    num_steps: int | None = None,
    budget_s: float = 1.0,
) -> Literal["cpu", "gpu", "mps"]:
    """Return the accelerator that trains a model fastest: ``Trainer(accelerator=...)``.

    For a ``LightningModule``, copies run ``training_step`` on the batch, with the first optimizer
    of ``configure_optimizers``; their logs are discarded. A ``training_step`` that needs its
    trainer, as manual optimization does, cannot be measured. Pass ``loss_fn`` then: it is measured
    with ``forward``, as for any other model.

    Args:
        model: A ``LightningModule``, or any module.
        sample_batch: One batch of the training data loader.
        optimizer: As in `breakeven.auto`; by default a ``LightningModule``'s own.
        loss_fn: As in `breakeven.auto`.
        num_steps: As in `breakeven.auto`.
        budget_s: As in `breakeven.auto`.
    """
    is_lightning = hasattr(model, "training_step") and hasattr(model, "configure_optimizers")
    if is_lightning and optimizer is None:
        optimizer = _own_optimizer(model)
    if is_lightning and loss_fn is None:
        model, sample_batch = _TrainingStep(model), (sample_batch,)
    with warnings.catch_warnings():
        # The copy has no trainer to log to, on purpose.
        warnings.filterwarnings("ignore", message=r"You are trying to `self\.log\(\)`")
        device = auto(
            model,
            sample_batch,
            optimizer=optimizer,
            loss_fn=loss_fn,
            num_steps=num_steps,
            budget_s=budget_s,
        )
    return _ACCELERATORS.get(device.type, "cpu")


class _TrainingStep(nn.Module):
    """A module whose forward pass is another module's training step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Any:
        step: Any = self.module.training_step
        has_index = len(inspect.signature(step).parameters) > 1
        return step(batch, 0) if has_index else step(batch)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the module by its own method, since Lightning records its device there."""
        self.module.to(*args, **kwargs)
        return self


def _own_optimizer(model: nn.Module) -> torch.optim.Optimizer | None:
    """Return the first optimizer that a LightningModule configures; None if it has none."""
    # Use a shallow copy: its assignments to `self` do not reach the user's module, and it shares
    # the parameters.
    twin: Any = copy.copy(model)
    try:
        configured = twin.configure_optimizers()
    except Exception as error:
        warnings.warn(
            f"breakeven measures without the optimizer: configure_optimizers failed ({error})",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    return _first_optimizer(configured)


def _first_optimizer(configured: Any) -> torch.optim.Optimizer | None:
    """Return the first optimizer in a result of ``configure_optimizers``.

    Source: LightningModule.configure_optimizers: one, a list, a pair of lists of optimizers and
    schedulers, a dict with "optimizer", or several of these dicts.
    """
    if isinstance(configured, torch.optim.Optimizer):
        return configured
    if isinstance(configured, Mapping):
        return _first_optimizer(configured.get("optimizer"))
    if isinstance(configured, tuple | list) and configured:
        return _first_optimizer(configured[0])
    return None
