"""Measure on the devices that are here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from breakeven.measure._cpu_flags import has_bf16_hardware as has_bf16_hardware
from breakeven.measure._load import OtherLoad as OtherLoad
from breakeven.measure._own_time import PoolWaits as PoolWaits
from breakeven.measure._own_time import own_time_ns as own_time_ns
from breakeven.measure._page_faults import PageFaults as PageFaults

if TYPE_CHECKING:
    from breakeven.measure._clock import GpuClock as GpuClock
    from breakeven.measure._clock import HostClock as HostClock
    from breakeven.measure._measure_host import measure_host as measure_host
    from breakeven.measure._measure_step import measure_step as measure_step
    from breakeven.measure._step_timer import LEAST_SAMPLES as LEAST_SAMPLES
    from breakeven.measure._step_timer import MOST_SAMPLES as MOST_SAMPLES
    from breakeven.measure._step_timer import PATIENCE as PATIENCE
    from breakeven.measure._step_timer import StepTimer as StepTimer

# Loaded on first use: a process that only asks others to measure needs no torch.
_HOMES = {
    "GpuClock": "_clock",
    "HostClock": "_clock",
    "LEAST_SAMPLES": "_step_timer",
    "MOST_SAMPLES": "_step_timer",
    "PATIENCE": "_step_timer",
    "StepTimer": "_step_timer",
    "measure_host": "_measure_host",
    "measure_step": "_measure_step",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
