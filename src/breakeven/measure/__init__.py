"""Measurements on the devices of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use
from breakeven.measure.busy_machine import OtherLoad as OtherLoad
from breakeven.measure.busy_machine import PageFaults as PageFaults
from breakeven.measure.busy_machine import PoolWaits as PoolWaits
from breakeven.measure.busy_machine import own_time_ns as own_time_ns
from breakeven.measure.energy_counters import EnergyMeter as EnergyMeter

if TYPE_CHECKING:
    from breakeven.measure.device_timer import DeviceTimer as DeviceTimer
    from breakeven.measure.host import measure_cpu_rates as measure_cpu_rates
    from breakeven.measure.host import measure_host as measure_host
    from breakeven.measure.host import time_on_one_core as time_on_one_core
    from breakeven.measure.step_timer import LEAST_SAMPLES as LEAST_SAMPLES
    from breakeven.measure.step_timer import MOST_SAMPLES as MOST_SAMPLES
    from breakeven.measure.step_timer import PATIENCE as PATIENCE
    from breakeven.measure.step_timer import GpuClock as GpuClock
    from breakeven.measure.step_timer import HostClock as HostClock
    from breakeven.measure.step_timer import StepTimer as StepTimer
    from breakeven.measure.step_timer import measure_step as measure_step

# Loaded on first use: a process that leaves measuring to others needs no torch.
__getattr__ = exported_on_use(__name__)
