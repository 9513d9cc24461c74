"""Let models be built of fake tensors: what constructors need that fakes do not give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from breakeven.capture.recorder import StepRecorder
from breakeven.configure import Patches

# Of longer tensors, such as tables of positions, nothing reads the values.
_MAX_KNOWN_VALUES = 1024

_Convert = Callable[[torch.Tensor], torch.Tensor]


def patch_construction(patches: Patches, recorder: StepRecorder) -> None:
    """Let models be built and converted whose parameters are fake tensors.

    Args:
        patches: Restores everything when it is left.
        recorder: What runs under it is no construction.
    """
    _patch_conversion(patches)
    # It draws until all values are within bounds, and fakes have none.
    patches.replace(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor)
    # Constructors compute widths and rates of stochastic depth, and read them.
    patches.replace(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MAX_KNOWN_VALUES)
    for name in ("arange", "linspace"):
        patches.replace(torch, name, _with_values(getattr(torch, name), recorder))


def _with_values(
    create: Callable[..., torch.Tensor], recorder: StepRecorder
) -> Callable[..., torch.Tensor]:
    """Let a factory make tensors whose values are known, other than in a recorded step."""

    @functools.wraps(create)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if recorder in _get_current_dispatch_mode_stack():
            return create(*args, **kwargs)
        with _disable_current_modes():
            values = create(*args, **kwargs)
        if values.numel() > _MAX_KNOWN_VALUES:
            return create(*args, **kwargs)
        # A fake tensor keeps the values of what is made of Python numbers.
        return torch.tensor(values.tolist(), dtype=values.dtype)

    return make


def _patch_conversion(patches: Patches) -> None:
    """Let ``module.to(...)``, ``.half()`` and their kin give a module new parameters.

    torch swaps a fake parameter with its conversion in place, and refuses where something holds a
    weak reference to it, as the fake tensor mode itself does.
    """
    # By id; the parameters are kept alive, so that ids are not given to others. A parameter that
    # two modules share stays shared.
    converted: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    depth = 0

    def apply(module: nn.Module, convert: _Convert, recurse: bool = True) -> nn.Module:
        nonlocal depth
        depth += 1
        try:
            if recurse:
                for child in module.children():
                    child._apply(convert)
            _convert_own(module, convert, converted)
        finally:
            depth -= 1
            if depth == 0:
                converted.clear()
        return module

    patches.replace(nn.Module, "_apply", apply)


def _convert_own(
    module: nn.Module, convert: _Convert, converted: dict[int, tuple[nn.Parameter, nn.Parameter]]
) -> None:
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if id(parameter) not in converted:
            with torch.no_grad():
                value = convert(parameter)
            new = parameter
            if value is not parameter:
                new = nn.Parameter(value, requires_grad=parameter.requires_grad)
            converted[id(parameter)] = (parameter, new)
        module._parameters[name] = converted[id(parameter)][1]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = convert(buffer)
