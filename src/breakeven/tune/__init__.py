"""Find the fastest configuration of a training step, by measurement, and prove it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from breakeven.tune.defaults import DEFAULT_BUDGET as DEFAULT_BUDGET
from breakeven.tune.defaults import DEFAULT_NUM_STEPS as DEFAULT_NUM_STEPS
from breakeven.tune.defaults import default_budget_s as default_budget_s

if TYPE_CHECKING:
    from breakeven.tune.run_target import RunTarget as RunTarget
    from breakeven.tune.run_target import check_runnable as check_runnable
    from breakeven.tune.run_target import machine_changes as machine_changes
    from breakeven.tune.run_target import run_to_end as run_to_end
    from breakeven.tune.run_target import stored_configuration as stored_configuration
    from breakeven.tune.target import tune_target as tune_target

# Loaded on first use: the process that becomes the user's script needs no torch before.
_HOMES = {
    "RunTarget": "run_target",
    "check_runnable": "run_target",
    "machine_changes": "run_target",
    "run_to_end": "run_target",
    "stored_configuration": "run_target",
    "tune_target": "target",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
