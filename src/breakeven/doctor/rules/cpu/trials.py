"""Measured steps on the CPU under other settings, against the step as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from breakeven.doctor.rule import KnownGain
from breakeven.timing import CpuFacts, CpuTrial
from breakeven.units import format_duration

# Two measurements that are closer than this are the same on a machine that others use too.
_MIN_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class FasterTrial:
    """The step under a setting with which it is faster beyond doubt: the intervals lie apart."""

    cpu: CpuFacts
    trial: CpuTrial

    @property
    def gain(self) -> KnownGain:
        """Return what it saves; its interval takes both measurements at their ends."""
        before, after = self.cpu.estimate, self.trial.estimate
        return KnownGain(
            fraction=1.0 - after.value_ns / before.value_ns,
            low_fraction=1.0 - after.high_ns / before.low_ns,
            high_fraction=1.0 - after.low_ns / before.high_ns,
        )

    @property
    def evidence(self) -> str:
        """Return both measurements as text."""
        return (
            f"measured on this CPU: {format_duration(self.cpu.estimate.value_ns)} as it is, "
            f"{format_duration(self.trial.estimate.value_ns)} with {self.trial.setting}"
        )


def faster_trial(cpu: CpuFacts | None, is_meant: Callable[[CpuTrial], bool]) -> FasterTrial | None:
    """Return the fastest of some trials, where it is faster than the step as it is."""
    meant = filter(is_meant, cpu.trials if cpu else ())
    best = min(meant, key=lambda trial: trial.estimate.value_ns, default=None)
    if cpu is None or best is None or best.estimate.high_ns >= cpu.estimate.low_ns:
        return None
    found = FasterTrial(cpu, best)
    return found if found.gain.fraction > _MIN_GAIN else None
