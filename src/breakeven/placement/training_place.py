"""A device on which a copy of the user's model is trained for a moment."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from breakeven.configure import set_num_threads
from breakeven.errors import BreakevenError
from breakeven.placement.call import ModelCall, map_tensors
from breakeven.placement.copies import (
    OptimizerFactory,
    copy_model,
    copy_optimizer,
    needs_closure,
)
from breakeven.placement.devices import device_title, free_bytes
from breakeven.units import format_bytes

# Copies of the parameters in one step, at least: themselves and their gradients; most optimizers
# keep two more.
_COPIES_IN_STEP = 2
_COPIES_IN_OPTIMIZER = 2


class TrainingPlace:
    """Forward, backward and update of a copy of a model on one device.

    On a device that is not the batch's own, each step begins with the copy of the batch to it.

    Args:
        device: Where to train.
        model: Is copied in `prepare`, never touched.
        batch: Sample batch; copied too.
        call: How the model is called.
        optimizer: Of the model, or what makes one; None for steps without an update.
        num_threads: Of torch on the CPU, for this place; 0 to leave them.
    """

    def __init__(
        self,
        device: torch.device,
        model: nn.Module,
        batch: Any,
        call: ModelCall,
        optimizer: torch.optim.Optimizer | OptimizerFactory | None,
        *,
        num_threads: int = 0,
    ) -> None:
        self.device = device
        self.num_threads = num_threads
        self.name = device_title(device)
        if num_threads:
            self.name += f", {num_threads} thread{'s' * (num_threads > 1)}"
        self.starts_up = device.type != "cpu"
        self.one_off_ns = 0.0
        self._original = (model, batch, optimizer)
        self._call = call
        self._restore_random: Callable[[], object] = lambda: None
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._batch: Any = None

    def prepare(self) -> None:
        """Copy the model, its optimizer and the batch to the device."""
        model, batch, optimizer = self._original
        self._check_memory(model, has_optimizer=optimizer is not None)
        if self.starts_up:
            self._start_device()
        started_ns = perf_counter_ns()
        copied_model, tensors = copy_model(model, self.device)
        self.synchronize()
        if any(parameter.device != self.device for parameter in model.parameters()):
            self.one_off_ns = float(perf_counter_ns() - started_ns)
        self._model = copied_model
        if optimizer is not None:
            self._optimizer = copy_optimizer(optimizer, copied_model, tensors, self.device)
        self._batch = map_tensors(self._own_copy, batch)

    def enter(self) -> None:
        """Set the number of threads."""
        set_num_threads(self.num_threads)

    def run_step(self) -> None:
        """Copy the batch, run forward, backward where there is a gradient, and update."""
        model, optimizer = self._model, self._optimizer
        assert model is not None, "prepared before it runs"
        batch = self._batch
        if self.starts_up:
            batch = map_tensors(self._move, batch)
        if optimizer is not None and needs_closure(optimizer):
            optimizer.step(lambda: self._backward(model, batch))  # pyright: ignore
            return
        self._backward(model, batch)
        if optimizer is not None:
            optimizer.step()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def close(self) -> None:
        """Free the copies, and give back the device's random numbers."""
        self._model = self._optimizer = self._batch = None
        self._restore_random()

    def _backward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = self._call.loss(model, batch)
        if loss.requires_grad:
            loss.backward()
        return loss

    def _start_device(self) -> None:
        """Start the device, so that this is not taken for the cost of moving the model."""
        match self.device.type:
            case "cuda":
                state = torch.cuda.get_rng_state(self.device)
                self._restore_random = lambda: torch.cuda.set_rng_state(state, self.device)
            case "mps":
                state = torch.mps.get_rng_state()
                self._restore_random = lambda: torch.mps.set_rng_state(state)
            case _:
                pass
        torch.zeros(1, device=self.device)
        self.synchronize()

    def _check_memory(self, model: nn.Module, *, has_optimizer: bool) -> None:
        free = free_bytes(self.device)
        if free is None:
            return
        num_copies = _COPIES_IN_STEP + _COPIES_IN_OPTIMIZER * has_optimizer
        needed = sum(
            tensor.numel() * tensor.element_size() * (num_copies if tensor.requires_grad else 1)
            for tensor in (*model.parameters(), *model.buffers())
            if not is_lazy(tensor)
        )
        if needed > free:
            raise BreakevenError(
                f"a copy of the model with gradients and optimizer state takes "
                f"{format_bytes(needed)}, and {format_bytes(free)} are free"
            )

    def _own_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of the sample batch to where the user's loop would have it."""
        lies_here = tensor.device == self.device
        target = self.device if lies_here or not self.starts_up else torch.device("cpu")
        copied = tensor.detach().to(target, copy=True)
        if tensor.is_pinned():
            copied = copied.pin_memory()
        return copied.requires_grad_(tensor.requires_grad)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=tensor.is_pinned())
