"""Know which ``nn.Module`` is running."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from breakeven.capture._model_calls import CalledModel, start_call
from breakeven.capture._recorder import StepRecorder


class ModulePath(ExitStack):
    """Keeps ``recorder.module_path`` at the dotted path of the innermost running module."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._stack: list[str] = []
        # Of the running modules, which are TorchScript's.
        self._script_depths: list[int] = []
        # The call of the outermost of them, if it has parameters.
        self._call: CalledModel | None = None
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()

    def __enter__(self) -> ModulePath:
        super().__enter__()
        self.callback(register_module_forward_pre_hook(self._enter_module).remove)
        leave = register_module_forward_hook(self._leave_module, always_call=True)
        self.callback(leave.remove)
        return self

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        if not self._stack or module not in self._names:
            root = type(module).__name__
            for name, part in module.named_modules():
                self._names[part] = f"{root}.{name}" if name else root
        if isinstance(module, torch.jit.ScriptModule) and self._recorder.devices.any_on_device(
            inputs
        ):
            # TorchScript's own `x.device` is the real one: what it creates there is on the device.
            self._script_depths.append(len(self._stack))
            self._recorder.is_call_on_device = True
        if not self._stack and torch.is_grad_enabled():
            self._recorder.model_inputs += _num_samples(module, inputs)
        if not self._stack and not self._recorder.is_paused:
            self._call = start_call(module, inputs, self._recorder)
        self._stack.append(self._names[module])
        self._recorder.modules.append((self._stack[-1], module))
        self._recorder.module_path = self._stack[-1]

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
            self._recorder.modules.pop()
        if self._call is not None and not self._stack:
            self._call.end(self._recorder.events)
            self._call = None
        if self._script_depths and self._script_depths[-1] == len(self._stack):
            self._script_depths.pop()
            self._recorder.is_call_on_device = True if self._script_depths else None
        self._recorder.module_path = self._stack[-1] if self._stack else ""


def _num_samples(module: nn.Module, inputs: tuple[Any, ...]) -> list[int]:
    """Return the leading dimension of a model's input, where that is the batch.

    A loss without parameters is no model, and a recurrent layer that is used by itself may have
    time in front.
    """
    if isinstance(module, (nn.RNNBase, nn.Transformer)) or next(module.parameters(), None) is None:
        return []
    first = next((item for item in inputs if isinstance(item, torch.Tensor)), None)
    return [first.shape[0]] if first is not None and first.dim() > 1 else []
