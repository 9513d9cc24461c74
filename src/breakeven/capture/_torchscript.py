"""Let TorchScript compile code that calls what was replaced."""

from __future__ import annotations

from typing import Any

import torch.jit._builtins

from breakeven.configure import Patches


def patch_torchscript(patches: Patches) -> None:
    """Let TorchScript, which knows torch's operators by identity, know their replacements too."""
    original = torch.jit._builtins._find_builtin

    def find_builtin(function: Any) -> Any:
        return original(function) or original(patches.original_of(function))

    patches.replace(torch.jit._builtins, "_find_builtin", find_builtin)
