"""CPU: what makes the step faster on this machine's CPU."""

from __future__ import annotations

from typing import Final

from breakeven.advise.events import is_convolution
from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, rule
from breakeven.advise.step_times import faster_trial, line_of_threads, threads_and_cores
from breakeven.cost import Family
from breakeven.simulate import Side
from breakeven.timing import CpuSetting, CpuTrial
from breakeven.units import format_duration, format_percent


@rule("CPU001", "THREADS_SMALL")
def too_many_threads(case: RuleInput) -> Matches:
    num_threads, num_cores = threads_and_cores(case)
    faster = faster_trial(case.cpu, lambda trial: 0 < trial.num_threads < num_threads)
    if num_threads > num_cores or faster is None:
        return
    fewer = faster.trial.num_threads
    yield Match(
        title=f"on the CPU {fewer} of {num_threads} threads are faster",
        fix=f"torch.set_num_threads({fewer}) where it trains on the CPU",
        evidence=faster.evidence,
        location=line_of_threads(case),
        gain=faster.gain,
        side=Side.CPU,
    )


@rule("CPU002", "THREADS_OVER")
def more_threads_than_cores(case: RuleInput) -> Matches:
    num_threads, num_cores = threads_and_cores(case)
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


@rule("CPU004", "CPU_LAYOUT")
def channels_last_on_cpu(case: RuleInput) -> Matches:
    faster = faster_trial(case.cpu, lambda trial: trial.changes(CpuSetting.CHANNELS_LAST))
    if faster is not None and any(map(is_convolution, case.trace.ops)):
        yield Match(
            title="convolutions on the CPU are faster with channels last",
            fix="model.to(memory_format=torch.channels_last), and the same for each batch",
            evidence=faster.evidence,
            gain=faster.gain,
            side=Side.CPU,
        )


_MIN_EAGER_FRACTION = 0.5

# What a compiler merges into the loops of its neighbours.
_FUSABLE: Final = (Family.ELEMENTWISE, Family.REDUCTION, Family.NORMALIZATION, Family.SOFTMAX)


@rule("CPU006", "EAGER_OVERHEAD")
def eager_overhead(case: RuleInput) -> Matches:
    cpu, num_ops = case.cpu, len(case.trace.ops)
    if cpu is None or cpu.dispatch_ns <= 0 or cpu.estimate.value_ns <= 0:
        return
    share = min(1.0, num_ops * cpu.dispatch_ns / cpu.estimate.value_ns)
    if share < _MIN_EAGER_FRACTION or case.trace.settings.is_compiled:
        return
    yield Match(
        title=f"on the CPU calling {num_ops} operators takes {format_percent(share)} of the step",
        fix="torch.compile, fused=True in the optimizer, a larger batch",
        evidence=f"{num_ops} operators at {format_duration(cpu.dispatch_ns)} each, in a "
        f"step of {format_duration(cpu.estimate.value_ns)}",
        gain=KnownGain(
            fraction=share * _mergeable_fraction(case), low_fraction=0.0, high_fraction=share
        ),
        share_fraction=share,
        side=Side.CPU,
    )


def _mergeable_fraction(case: RuleInput) -> float:
    """Return the part of the operators that a compiler can merge with their neighbours."""
    lowered = [lowering for lowering in case.program.lowerings if lowering is not None]
    mergeable = sum(
        all(kernel.family in _FUSABLE for kernel in lowering.kernels) for lowering in lowered
    )
    return mergeable / len(lowered) if lowered else 0.0
