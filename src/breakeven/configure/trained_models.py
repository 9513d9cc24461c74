"""Find the models that a script trains, at the moment when it first calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.configure.by_identity import ByIdentity
from breakeven.configure.module_tree import named_parameters_of, updated_by
from breakeven.configure.patching import Patches

# After so many updates every model that is trained has been called.
_MAX_UPDATES = 32


class TrainedModels(Patches):
    """Calls back before the first call of each model that an optimizer has parameters of.

    A call within the call of another module is part of that one. Once all parameters of all
    optimizers belong to models that were found, module calls are left alone again.

    Args:
        on_found: Called with the model.
    """

    def __init__(self, on_found: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self._on_found = on_found
        # Optimizers may replace their parameters, and be given more: hence no set of those.
        self._optimizers = ByIdentity[torch.optim.Optimizer, bool]()
        self._found = ByIdentity[nn.Module, bool]()
        self._num_updates = 0
        self._is_over = False

    def __enter__(self) -> TrainedModels:
        super().__enter__()
        original_init = torch.optim.Optimizer.__init__
        original_call = nn.Module.__call__

        @functools.wraps(original_init)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original_init(optimizer, *args, **kwargs)
            self._optimizers[optimizer] = True

        @functools.wraps(original_call)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_over or torch.compiler.is_compiling():
                return original_call(module, *args, **kwargs)
            self._look_at(module)
            # Its parts are called as ever: at full speed, and as torch.compile knows them.
            nn.Module.__call__ = original_call
            try:
                return original_call(module, *args, **kwargs)
            finally:
                if not self._is_over:
                    nn.Module.__call__ = call

        def stop() -> None:
            if not self._is_over:
                self._is_over = True
                nn.Module.__call__ = original_call

        def end_update(*_: Any) -> None:
            self._num_updates += 1
            if not self._is_over and (self._num_updates >= _MAX_UPDATES or self._is_complete()):
                stop()

        self.replace(torch.optim.Optimizer, "__init__", initialize)
        self.replace(nn.Module, "__call__", call)
        self.callback(stop)
        self.callback(register_optimizer_step_post_hook(end_update).remove)
        return self

    def _look_at(self, module: nn.Module) -> None:
        if module in self._found or isinstance(module, torch.jit.ScriptModule):
            return
        trained = {id(parameter) for parameter in self._parameters()}
        if any(id(parameter) in trained for _, parameter in named_parameters_of(module)):
            self._found[module] = True
            self._on_found(module)

    def _is_complete(self) -> bool:
        known = {
            id(parameter)
            for module in list(self._found)
            for _, parameter in named_parameters_of(module)
        }
        return all(id(parameter) in known for parameter in self._parameters())

    def _parameters(self) -> Iterator[torch.Tensor]:
        for optimizer in list(self._optimizers):
            yield from updated_by(optimizer)
