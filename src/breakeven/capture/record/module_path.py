"""Know which ``nn.Module`` is running."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from breakeven.capture.record.event_log import CalledModel, next_node
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import ByIdentity, has_parameters, named_parts
from breakeven.trace import Phase


class ModulePath(ExitStack):
    """Keeps ``recorder.here.modules``: which modules run, the innermost last."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._names = ByIdentity[nn.Module, str]()

    def __enter__(self) -> ModulePath:
        super().__enter__()
        if self._recorder.is_recording:
            self._register()
        else:  # hooks cost each call of a module as much as a small operator
            self._recorder.on_first_recording.append(self._register)
        return self

    def _register(self) -> None:
        self.callback(register_module_forward_pre_hook(self._enter_module).remove)
        leave = register_module_forward_hook(self._leave_module, always_call=True)
        self.callback(leave.remove)

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        recorder, here = self._recorder, self._recorder.here
        if not recorder.is_recording:
            here.modules.append(("", module))
            return
        is_outermost = not here.modules
        if is_outermost and recorder.updates is not None:
            recorder.updates.begin_forward()
        if is_outermost or module not in self._names:
            root = type(module).__name__
            for name, part in named_parts(module):
                self._names[part] = f"{root}.{name}" if name else root
        if is_outermost and torch.is_grad_enabled():
            recorder.step.model_inputs += _num_samples(module, inputs)
        if is_outermost and recorder.is_noting:
            here.call = _start_call(module, inputs, recorder)
        here.modules.append((self._names[module], module))

    def _leave_module(self, *_: Any) -> None:
        here = self._recorder.here
        if here.modules:
            here.modules.pop()
        if here.call is not None and not here.modules:
            here.call.end(self._recorder.events)
            here.call = None


def _num_samples(module: nn.Module, inputs: tuple[Any, ...]) -> list[int]:
    """Return the leading dimension of a model's input, where that is the batch.

    A loss without parameters is no model, and a recurrent layer that is used by itself may have
    time in front.
    """
    if isinstance(module, (nn.RNNBase, nn.Transformer)) or not has_parameters(module):
        return []
    first = next((item for item in inputs if isinstance(item, torch.Tensor)), None)
    return [first.size(0)] if first is not None and first.dim() > 1 else []


def _start_call(module: nn.Module, inputs: Any, recorder: StepRecorder) -> CalledModel | None:
    """Note that ``module`` is called; None where it is no model or only prepares data."""
    if recorder.here.phase is Phase.DATA or not has_parameters(module):
        return None
    origin = recorder.current_origin()
    position, node = len(recorder.events), next_node()
    call = CalledModel(
        model=type(module).__name__,
        location=origin.location,
        stack=origin.stack,
        is_training=bool(module.training),
        num_samples=_first_dimension(inputs),
        events=recorder.events,
        first_event=position,
        end_event=position,
        first_node=node,
        end_node=node,
        has_grad=torch.is_grad_enabled(),
    )
    recorder.step.model_calls.append(call)
    return call


def _first_dimension(inputs: tuple[Any, ...]) -> int:
    """Return the leading dimension of the first tensor that a model is given."""
    named = _keywords_of_call()
    for value in (*inputs, *named.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0)
    return 0


def _keywords_of_call() -> dict[str, Any]:
    """Return the keywords of the module call whose hook runs; hooks for all are given none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}
