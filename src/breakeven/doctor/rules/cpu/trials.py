"""Measured steps on the CPU under other settings, against the step as it is."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.doctor.rule import KnownGain
from breakeven.timing import CpuFacts, CpuSetting, CpuTrial
from breakeven.units import format_duration

# Two measurements that are closer than this are the same on a machine that others use too.
_MIN_GAIN = 0.05


def trials_of(cpu: CpuFacts, setting: CpuSetting) -> tuple[CpuTrial, ...]:
    """Return the trials of one setting."""
    return tuple(trial for trial in cpu.trials if trial.changes(setting))


def faster_trial(cpu: CpuFacts, trials: Iterable[CpuTrial]) -> CpuTrial | None:
    """Return the fastest trial, where it is faster beyond doubt: the intervals lie apart."""
    best = min(trials, key=lambda trial: trial.estimate.value_ns, default=None)
    if best is None or best.estimate.high_ns >= cpu.estimate.low_ns:
        return None
    return best if _saved(cpu, best.estimate.value_ns) > _MIN_GAIN else None


def _saved(cpu: CpuFacts, fixed_ns: float) -> float:
    return 1.0 - fixed_ns / cpu.estimate.value_ns if cpu.estimate.value_ns > 0 else 0.0


def measured_gain(cpu: CpuFacts, trial: CpuTrial) -> KnownGain:
    """Return what a trial saves of the step; its interval takes both measurements at their ends."""
    before, after = cpu.estimate, trial.estimate
    return KnownGain(
        fraction=_saved(cpu, after.value_ns),
        low_fraction=1.0 - after.high_ns / before.low_ns if before.low_ns > 0 else 0.0,
        high_fraction=1.0 - after.low_ns / before.high_ns,
    )


def as_measured(cpu: CpuFacts, trial: CpuTrial) -> str:
    """Return both measurements as text."""
    return (
        f"measured on this CPU: {format_duration(cpu.estimate.value_ns)} as it is, "
        f"{format_duration(trial.estimate.value_ns)} with {trial.setting}"
    )
