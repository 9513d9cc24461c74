"""Let TorchScript compile code that calls what was replaced, and create on the pretended device."""

from __future__ import annotations

from typing import Any

import torch
import torch.jit._builtins

from breakeven.capture._recorder import StepRecorder
from breakeven.configure import Patches


def patch_torchscript(patches: Patches) -> None:
    """Let TorchScript, which knows torch's operators by identity, know their replacements too."""
    original = torch.jit._builtins._find_builtin

    def find_builtin(function: Any) -> Any:
        return original(function) or original(patches.original_of(function))

    patches.replace(torch.jit._builtins, "_find_builtin", find_builtin)


def patch_script_functions(patches: Patches, recorder: StepRecorder) -> None:
    """Let what a compiled function creates be on the device of its arguments.

    Its own ``x.device`` is the real one, as in a compiled module; see `ModulePath` for those.
    """
    original = torch.jit.ScriptFunction.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.is_call_on_device
        device = recorder.devices.first_device((*args, *kwargs.values()))
        if device is not None:
            recorder.is_call_on_device = True
            recorder.last_device = device
        try:
            return original(function, *args, **kwargs)
        finally:
            recorder.is_call_on_device = before

    patches.replace(torch.jit.ScriptFunction, "__call__", call)
