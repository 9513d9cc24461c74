"""Samples, their statistics, and times with intervals."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.timing.measurement import BUSY_BESIDE as BUSY_BESIDE
    from breakeven.timing.measurement import BUSY_FRACTION as BUSY_FRACTION
    from breakeven.timing.measurement import BUSY_MACHINE as BUSY_MACHINE
    from breakeven.timing.measurement import CONFIDENCE as CONFIDENCE
    from breakeven.timing.measurement import EMULATED_ON_CPU as EMULATED_ON_CPU
    from breakeven.timing.measurement import Clock as Clock
    from breakeven.timing.measurement import CounterPower as CounterPower
    from breakeven.timing.measurement import CpuFacts as CpuFacts
    from breakeven.timing.measurement import CpuSetting as CpuSetting
    from breakeven.timing.measurement import CpuTrial as CpuTrial
    from breakeven.timing.measurement import Estimate as Estimate
    from breakeven.timing.measurement import MachinePower as MachinePower
    from breakeven.timing.measurement import Measurement as Measurement
    from breakeven.timing.measurement import Source as Source
    from breakeven.timing.measurement import StepPhases as StepPhases
    from breakeven.timing.measurement import find_round_ends as find_round_ends
    from breakeven.timing.measurement import find_warmup as find_warmup
    from breakeven.timing.speedup import RunRatio as RunRatio
    from breakeven.timing.speedup import Speedup as Speedup
    from breakeven.timing.speedup import TurnKind as TurnKind
    from breakeven.timing.speedup import compare_pairs as compare_pairs
    from breakeven.timing.speedup import compare_runs as compare_runs
    from breakeven.timing.speedup import compare_turns as compare_turns

__getattr__ = exported_on_use(__name__)
