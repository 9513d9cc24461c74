"""The values that a step changes, to go back to."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Snapshot:
    """The values of model, loss, optimizer and random numbers, to go back to."""

    def __init__(self, model: nn.Module, loss_fn: Any, optimizer: Optimizer) -> None:
        modules = [model, loss_fn] if isinstance(loss_fn, nn.Module) else [model]
        self._tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._values = [tensor.detach().clone() for tensor in self._tensors]
        self._optimizer = optimizer
        self._state = {
            param: (place, {name: (value, _copy(value)) for name, value in place.items()})
            for param, place in optimizer.state.items()
        }
        self._rng = torch.get_rng_state()
        has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._cuda_rng = torch.cuda.get_rng_state_all() if has_cuda else []

    def restore(self) -> None:
        """Put every value back, into the tensors that held it; gradients are dropped."""
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
        self.restore_random()

    def restore_random(self) -> None:
        """Put back the state of the random numbers alone."""
        torch.set_rng_state(self._rng)
        if self._cuda_rng:
            torch.cuda.set_rng_state_all(self._cuda_rng)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
