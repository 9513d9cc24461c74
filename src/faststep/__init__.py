"""Forward, backward and update of a PyTorch training step as one compiled call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faststep.errors import FastStepError as FastStepError

if TYPE_CHECKING:
    from faststep.engines import Engine as Engine
    from faststep.fallback import FallbackStep as FallbackStep
    from faststep.fast import FastStep as FastStep
    from faststep.fast import fast_step as fast_step
    from faststep.gate import StepCost as StepCost
    from faststep.sb3.stable_baselines3 import fast_sb3 as fast_sb3

# Loaded on first use: what asks only for the fallback must not wait for the compiler.
_HOMES = {
    "Engine": "engines",
    "FallbackStep": "fallback",
    "FastStep": "fast",
    "fast_step": "fast",
    "StepCost": "gate",
    "fast_sb3": "sb3.stable_baselines3",
}
__all__ = ["FastStepError", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"faststep.{_HOMES[name]}"), name)
    return value
