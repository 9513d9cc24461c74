"""The step measured on the CPU under other settings, and the threads that it has there."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from breakeven.doctor.rule import Case, KnownGain
from breakeven.doctor.source_lines import called_at
from breakeven.source import dotted_name
from breakeven.timing import CpuFacts, CpuTrial
from breakeven.trace import Location, RunFacts
from breakeven.units import format_duration

# Two measurements that are closer than this are the same on a machine that others use too.
_MIN_GAIN = 0.05
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


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


def threads_and_cores(case: Case) -> tuple[int, int]:
    """Return the threads that torch computes with, and the processors that it may use."""
    known: CpuFacts | RunFacts = case.cpu or case.facts
    return known.num_threads, known.num_cores


def line_of_threads(case: Case) -> Location | None:
    """Return the line that sets the number of threads; None where torch's default rules."""
    assigned = (
        source.location(node)
        for source, node in case.sources.nodes(ast.Assign)
        if any(map(_is_thread_variable, node.targets))
    )
    return called_at(case, "set_num_threads") or next(assigned, None)


def _is_thread_variable(target: ast.expr) -> bool:
    """Return whether ``target`` is ``os.environ["OMP_NUM_THREADS"]``."""
    return (
        isinstance(target, ast.Subscript)
        and dotted_name(target).endswith("environ")
        and isinstance(target.slice, ast.Constant)
        and target.slice.value in _THREAD_VARIABLES
    )
