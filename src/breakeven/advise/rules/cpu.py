"""CPU: changes that make the step faster on this machine's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, rule
from breakeven.advise.source_lines import recorded_calls
from breakeven.simulate import Side
from breakeven.timing import CpuFacts, CpuSetting, CpuTrial
from breakeven.trace import Location
from breakeven.units import format_duration, format_percent

# On a shared machine, a smaller difference between two measurements is noise.
_MIN_GAIN = 0.05


class FasterTrial(NamedTuple):
    """A setting that makes the step significantly faster.

    Args:
        trial: The setting.
        gain: Its gain; the interval combines the ends of both measurements.
        evidence: Both measurements as text.
    """

    trial: CpuTrial
    gain: KnownGain
    evidence: str


def faster_trial(cpu: CpuFacts | None, is_meant: Callable[[CpuTrial], bool]) -> FasterTrial | None:
    """Return the fastest of some trials, if its interval is below that of the unchanged step."""
    meant = filter(is_meant, cpu.trials if cpu else ())
    best = min(meant, key=lambda trial: trial.estimate.value_ns, default=None)
    if cpu is None or best is None or best.estimate.high_ns >= cpu.estimate.low_ns:
        return None
    before, after = cpu.estimate, best.estimate
    gain = KnownGain(
        fraction=1.0 - after.value_ns / before.value_ns,
        low_fraction=1.0 - after.high_ns / before.low_ns,
        high_fraction=1.0 - after.low_ns / before.high_ns,
    )
    evidence = f"measured on this CPU: {format_duration(before.value_ns)} as it is, "
    evidence += f"{format_duration(after.value_ns)} with {best.setting}"
    return FasterTrial(best, gain, evidence) if gain.fraction > _MIN_GAIN else None


def line_of_threads(case: RuleInput) -> Location | None:
    """Return the line that sets the number of threads; None if no call of the script does."""
    places = (call.location for call in recorded_calls(case, "set_num_threads"))
    return next(filter(None, places), None)


@rule("CPU001", "THREADS_SMALL")
def too_many_threads(case: RuleInput) -> Matches:
    known = case.cpu or case.facts
    num_threads, num_cores = known.num_threads, known.num_cores
    faster = faster_trial(case.cpu, lambda trial: 0 < trial.num_threads < num_threads)
    if num_threads > num_cores or faster is None:
        return
    fewer = faster.trial.num_threads
    yield Match(
        title=f"on the CPU {fewer} of {num_threads} threads are faster",
        fix=f"torch.set_num_threads({fewer}) when training on the CPU",
        evidence=faster.evidence,
        location=line_of_threads(case),
        gain=faster.gain,
        side=Side.CPU,
    )


@rule("CPU002", "THREADS_OVER")
def more_threads_than_cores(case: RuleInput) -> Matches:
    known = case.cpu or case.facts
    num_threads, num_cores = known.num_threads, known.num_cores
    if not 1 <= num_cores < num_threads:
        return
    faster = faster_trial(case.cpu, lambda trial: 0 < trial.num_threads < num_threads)
    yield Match(
        title=f"{num_threads} threads share {num_cores} processors",
        fix=f"at most {num_cores} threads: torch.set_num_threads, OMP_NUM_THREADS",
        evidence=f"torch has {num_threads} intra-op threads, the process may use "
        f"{num_cores} processors{f'; {faster.evidence}' if faster else ''}",
        location=line_of_threads(case),
        gain=faster.gain if faster else None,
        side=Side.CPU,
    )


_MIN_SUBNORMAL_FRACTION = 0.01


@rule("CPU003", "DENORMALS")
def subnormal_numbers(case: RuleInput) -> Matches:
    fraction = case.facts.subnormal_fraction
    was_tried = case.cpu is not None and any(map(_flushes, case.cpu.trials))
    faster = faster_trial(case.cpu, _flushes)
    if faster is None and (was_tried or fraction < _MIN_SUBNORMAL_FRACTION):
        return
    counted = f"{format_percent(fraction)} of parameters and gradients are subnormal"
    known = (counted if fraction > 0 else "", faster.evidence if faster else "")
    yield Match(
        title="the CPU computes with subnormal numbers",
        fix="torch.set_flush_denormal(True) before the first step",
        evidence="; ".join(filter(None, known)),
        gain=faster.gain if faster else None,
        side=Side.CPU,
    )


def _flushes(trial: CpuTrial) -> bool:
    return trial.changes(CpuSetting.FLUSH_DENORMAL)
