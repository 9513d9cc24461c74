"""The stock training step, by the model's and the optimizer's own code; snapshots of its state."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.batch import Batch
from faststep.errors import FastStepError
from faststep.recipe import Recipe, compute_loss, detached, stack_results
from faststep.several import AnyOptimizer, OwnUpdates


class Snapshot:
    """A copy of the state of model, loss, optimizer and random numbers.

    Args:
        model: The model.
        loss_fn: The loss; if it is a module, then the snapshot includes its tensors.
        optimizer: The optimizer.
        has_grads: ``restore`` puts the same gradient tensors back; by default it drops gradients.
            Writes into these tensors are not undone.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: AnyOptimizer, *, has_grads: bool = False
    ) -> None:
        modules = [model, loss_fn] if isinstance(loss_fn, nn.Module) else [model]
        self._tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._values = [tensor.detach().clone() for tensor in self._tensors]
        self._grads = [tensor.grad for tensor in self._tensors] if has_grads else None
        self._optimizer = optimizer
        self._state = {
            param: (place, {name: (value, _copy(value)) for name, value in place.items()})
            for param, place in optimizer.state.items()
        }
        self._rng = torch.get_rng_state()
        has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._cuda_rng = torch.cuda.get_rng_state_all() if has_cuda else []

    def restore(self) -> None:
        """Restore every value in place."""
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._values, strict=True):
                tensor.detach().copy_(value)
            for param in [param for param in self._optimizer.state if param not in self._state]:
                del self._optimizer.state[param]
            for place, values in self._state.values():
                place.clear()
                for name, (original, value) in values.items():
                    if isinstance(original, Tensor):
                        original.copy_(value)
                        place[name] = original
                    else:
                        place[name] = copy.copy(value)
        self._optimizer.zero_grad(set_to_none=True)
        for tensor, grad in zip(self._tensors, self._grads or (), strict=False):
            tensor.grad = grad
        self.restore_random()

    def restore_random(self) -> None:
        """Restore only the state of the random numbers."""
        torch.set_rng_state(self._rng)
        if self._cuda_rng:
            torch.cuda.set_rng_state_all(self._cuda_rng)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


class StockStep:
    """Forward, backward and update by the model's and the optimizer's own code.

    Args:
        recipe: The computation of a step.
        optimizer: The optimizer.
    """

    def __init__(self, recipe: Recipe, optimizer: AnyOptimizer) -> None:
        # The gradients of the last step, by parameter name.
        self.grads: dict[str, Tensor] = {}
        self.recipe = recipe
        self.optimizer = optimizer
        self._params = dict(recipe.model.named_parameters())

    def run(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do one step, or one for each row of indices.

        Returns:
            The loss or the losses, and the auxiliary tensors.
        """
        if indices is None:
            return self._step(batch)
        return stack_results([self._step(batch.rows(row)) for row in indices])

    def _step(self, batch: Batch) -> tuple[Tensor, ...]:
        recipe, optimizer = self.recipe, self.optimizer
        # Also drop gradients of parameters that the optimizer does not hold.
        recipe.model.zero_grad(set_to_none=True)
        inputs, targets = batch.rebuild(batch.tensors)
        params = dict[str, Tensor](self._params)
        device_type = next(iter(params.values())).device.type
        if recipe.updating is not None:
            run = OwnUpdates(recipe.model, recipe.updating, params)
            with torch.enable_grad(), run.replaced():
                results = detached(compute_loss(recipe, inputs, targets, {}, {}, device_type))
            self.grads = run.grads
        else:
            assert isinstance(optimizer, Optimizer)
            with torch.enable_grad():
                results = compute_loss(recipe, inputs, targets, {}, {}, device_type)
                loss = results[0]
                if loss.numel() != 1:
                    raise FastStepError(
                        f"the loss has shape {tuple(loss.shape)}: it must be a single number",
                        hint="Reduce it, by its mean for example.",
                    )
                loss.backward()
                results = detached(results)
            if recipe.max_grad_norm is not None:
                held = [param for group in optimizer.param_groups for param in group["params"]]
                torch.nn.utils.clip_grad_norm_(held, recipe.max_grad_norm)
            optimizer.step()
            self.grads = {name: p.grad for name, p in params.items() if p.grad is not None}
        recipe.model.zero_grad(set_to_none=True)
        return results
