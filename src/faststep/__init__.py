"""Forward, backward and update of a PyTorch training step as one compiled call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faststep.errors import FastStepError

if TYPE_CHECKING:
    from faststep.fallback import FallbackStep
    from faststep.fast import Engine, FastStep, StepCost, fast_step
    from faststep.sb3.stable_baselines3 import fast_sb3

__all__ = [
    "Engine",
    "FallbackStep",
    "FastStep",
    "FastStepError",
    "StepCost",
    "fast_sb3",
    "fast_step",
]


def __getattr__(name: str) -> Any:
    """Load a name on first use: an import of only the fallback must not load the compiler."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"FallbackStep": "fallback", "fast_sb3": "sb3.stable_baselines3"}.get(name, "fast")
    value = globals()[name] = getattr(import_module(f"faststep.{home}"), name)
    return value
