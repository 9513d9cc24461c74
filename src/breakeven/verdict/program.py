"""The whole training, which is more than its steps: what reports show, and its prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from breakeven.units import NS_PER_S
from breakeven.verdict.crossover import log_ratio, rescaled
from breakeven.verdict.report import Verdict
from breakeven.verdict.results import DeviceKind, DeviceResult, Nanoseconds


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the script between some of its steps.

    Args:
        file: File of the user's code.
        line: Its line.
        function: The function called there; empty if it has no name.
        time_ns: Time per step, on this CPU.
    """

    file: str
    line: int
    function: str
    time_ns: Nanoseconds


class BetweenTime(msgspec.Struct, frozen=True, kw_only=True):
    """Work between some of the steps, on a GPU.

    Args:
        device: Name of the GPU, as among the results.
        time_ns: Time per step.
        low_ns: Lower end of its 90 % interval, which assumes that the work recurs as often as
            observed.
        high_ns: Upper end.
    """

    device: str
    time_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds


class TrainingTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a whole training on one device.

    Args:
        device: Name of the device, as among the results.
        total_ns: Time from the start of the script to the end of its last step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
    """

    device: str
    total_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds


class ProgramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The script's whole training: the work outside its steps, and the total on each device.

    Args:
        startup_ns: Time from the start of the script to the end of its first step, on this CPU,
            without the import of torch.
        data_ns: Part of the step time spent waiting for the next batch, on this CPU.
        other_ns: Time per step of the work between some of the steps, on this CPU: rollouts,
            evaluations, checkpoints. 0 if there is none; null if unknown, as on a busy machine.
        other_low_ns: Lower end of its 90 % interval.
        other_high_ns: Upper end.
        step_fraction: Share of the training time spent in steps, on this CPU, without start-up.
        parts: The work between the steps, longest first.
        unevenness: Mean step divided by the median one; above 1 if some steps take longer.
        speedup: Time of the training on the verdict's ``over`` divided by that on its ``device``,
            without start-up.
        low: Lower end of its 90 % interval.
        high: Upper end.
        num_steps: Steps of the training; null if the user gave no length.
        times: Time of ``num_steps`` steps on each device that fits the step, with start-up.
        between: The work between the steps on GPUs, predicted from a recording of part of it.
            Without a recording, and on other devices, the work is assumed to stay on the CPU and to
            take as long as now.
        steps_per_epoch: Steps in a pass over the data of the script's DataLoader; null if unknown,
            and in older reports.
    """

    startup_ns: Nanoseconds
    data_ns: Nanoseconds
    other_ns: Nanoseconds | None
    other_low_ns: Nanoseconds
    other_high_ns: Nanoseconds
    step_fraction: float
    parts: tuple[ProgramPart, ...]
    unevenness: float
    speedup: float
    low: float
    high: float
    num_steps: int | None = None
    times: tuple[TrainingTime, ...] = ()
    between: tuple[BetweenTime, ...] = ()
    steps_per_epoch: float | None = None


# Extra time from process start to the first step on a GPU: the CUDA context, the libraries and the
# first load of each kernel. Judgement, from 1-2 s (torch 1.3, RTX 2080 Ti: pytorch issue 39005) and
# 4 s (torch 1.1: pytorch issue 22583) for the first tensor alone.
_GPU_START_NS = (1.0 * NS_PER_S, 3.0 * NS_PER_S, 8.0 * NS_PER_S)


class ProgramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of a script outside its steps, on this CPU.

    Args:
        startup_ns: Time from its start to the end of its first step.
        data_ns: Time per step that it waits for the next batch.
        other_ns: Time per step of the work between some of the steps; None if unknown, as on a busy
            machine.
        other_low_ns: Lower end of its 90 % interval.
        other_high_ns: Upper end.
        parts: The parts of that work.
        between: Time of that work on GPUs, if it was recorded.
        unevenness: Mean step divided by the median one; above 1 if some steps take longer.
        steps_per_epoch: Steps in a pass over the data of the script's DataLoader; None if unknown.
    """

    startup_ns: float = 0.0
    data_ns: float = 0.0
    other_ns: float | None = None
    other_low_ns: float = 0.0
    other_high_ns: float = 0.0
    parts: tuple[ProgramPart, ...] = ()
    between: tuple[BetweenTime, ...] = ()
    unevenness: float = 1.0
    steps_per_epoch: float | None = None


def program_of(
    verdict: Verdict,
    results: Sequence[DeviceResult],
    facts: ProgramFacts,
    num_steps: int | None = None,
) -> ProgramSummary:
    """Return the prediction for the whole training.

    Work outside the steps takes a GPU the time predicted from its recording. Without a recording,
    it is assumed to stay on the CPU and to take as long as now.

    Args:
        verdict: The verdict on the step.
        results: The results behind that verdict.
        facts: The work outside the steps.
        num_steps: Steps of the training; None if its length is unknown.
    """
    named = {result.device: result for result in results}
    device, over = named[verdict.device], named[verdict.over]
    cpu = over if over.kind is DeviceKind.CPU else device
    other_ns = facts.other_ns or 0.0
    whole_ns = cpu.step_ns + other_ns
    # Work outside the steps moves the ratio towards 1, and its time is an estimate too.
    ratios = [
        log_ratio(_with_other(over, facts, added_ns), _with_other(device, facts, added_ns))
        for added_ns in (other_ns, facts.other_low_ns, facts.other_high_ns)
    ]
    return ProgramSummary(
        **{name: getattr(facts, name) for name in ProgramFacts.__struct_fields__},
        step_fraction=cpu.step_ns / whole_ns,
        speedup=math.exp(ratios[0].value),
        low=math.exp(min(ratio.low for ratio in ratios)),
        high=math.exp(max(ratio.high for ratio in ratios)),
        num_steps=num_steps,
        times=()
        if num_steps is None
        else tuple(
            training_time(result, facts, num_steps)
            for result in results
            if result.fits is not False
        ),
    )


def facts_of(program: ProgramSummary) -> ProgramFacts:
    """Return the observations of the script, to judge it again on other devices."""
    names = ProgramFacts.__struct_fields__
    return ProgramFacts(**{name: getattr(program, name) for name in names})


def _with_other(result: DeviceResult, facts: ProgramFacts, other_ns: float) -> DeviceResult:
    """Return a step plus the work between steps, which takes ``other_ns`` per step on this CPU."""
    found = next((each for each in facts.between if each.device == result.device), None)
    share = other_ns / facts.other_ns if facts.other_ns else 0.0
    low_ns, value_ns, high_ns = (
        (share * found.low_ns, share * found.time_ns, share * found.high_ns)
        if found
        else (other_ns,) * 3
    )
    return replace(
        result,
        step_ns=result.step_ns + value_ns,
        low_ns=result.low_ns + low_ns,
        high_ns=result.high_ns + high_ns,
    )


def training_time(result: DeviceResult, facts: ProgramFacts, num_steps: int) -> TrainingTime:
    """Return the time of ``num_steps`` steps on a device, from the start of the script."""
    start_ns = _GPU_START_NS if result.kind is DeviceKind.GPU else (0.0, 0.0, 0.0)
    step = rescaled(result, factor=facts.unevenness)
    others_ns = (facts.other_low_ns, facts.other_ns or 0.0, facts.other_high_ns)
    low, value, high = (_with_other(step, facts, other_ns) for other_ns in others_ns)
    low_ns, value_ns, high_ns = (
        facts.startup_ns + start + (num_steps - 1) * time_ns
        for start, time_ns in zip(start_ns, (low.low_ns, value.step_ns, high.high_ns), strict=True)
    )
    return TrainingTime(device=result.device, total_ns=value_ns, low_ns=low_ns, high_ns=high_ns)
