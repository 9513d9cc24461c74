"""Let TorchScript compile code that calls what was replaced, and create on the pretended device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.jit._builtins

from breakeven.capture.recorder import StepRecorder
from breakeven.configure import Patches


def patch_torchscript(patches: Patches) -> None:
    """Let TorchScript, which knows torch's operators by identity, know their replacements too."""
    original = torch.jit._builtins._find_builtin

    def find_builtin(function: Any) -> Any:
        return original(function) or original(patches.original_of(function))

    patches.replace(torch.jit._builtins, "_find_builtin", find_builtin)


def patch_compiled_calls(patches: Patches, recorder: StepRecorder) -> None:
    """Let what compiled functions and modules create be on the device of their arguments.

    TorchScript's own ``x.device`` is the real one.
    """
    for kind in (torch.jit.ScriptFunction, torch.ScriptMethod):
        patches.replace(kind, "__call__", _on_device_of_arguments(kind.__call__, recorder))


def _on_device_of_arguments(
    original: Callable[..., Any], recorder: StepRecorder
) -> Callable[..., Any]:
    def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        here = recorder.here
        before = here.is_call_on_device
        device = recorder.devices.first_device((*args, *kwargs.values()))
        if device is not None:
            here.is_call_on_device = True
            here.last_device = device
        try:
            return original(compiled, *args, **kwargs)
        finally:
            here.is_call_on_device = before

    return call
