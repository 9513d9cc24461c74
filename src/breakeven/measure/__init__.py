"""Measure on the devices that are here."""

from breakeven.measure._clock import CudaClock as CudaClock
from breakeven.measure._clock import HostClock as HostClock
from breakeven.measure._cpu_flags import has_bf16_hardware as has_bf16_hardware
from breakeven.measure._load import OtherLoad as OtherLoad
from breakeven.measure._measure_host import cpu_name as cpu_name
from breakeven.measure._measure_host import measure_host as measure_host
from breakeven.measure._measure_step import measure_step as measure_step
from breakeven.measure._step_timer import StepTimer as StepTimer
