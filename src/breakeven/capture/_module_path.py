"""Know which ``nn.Module`` is running."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from breakeven.capture._recorder import StepRecorder


class ModulePath(ExitStack):
    """Keeps ``recorder.module_path`` at the dotted path of the innermost running module."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._stack: list[str] = []
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()

    def __enter__(self) -> ModulePath:
        super().__enter__()
        self.callback(register_module_forward_pre_hook(self._enter_module).remove)
        leave = register_module_forward_hook(self._leave_module, always_call=True)
        self.callback(leave.remove)
        return self

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        if not self._stack or module not in self._names:
            root = type(module).__name__
            for name, part in module.named_modules():
                self._names[part] = f"{root}.{name}" if name else root
        self._stack.append(self._names[module])
        self._recorder.module_path = self._stack[-1]

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._recorder.module_path = self._stack[-1] if self._stack else ""
