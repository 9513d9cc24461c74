"""Where to train, from what each device takes for a step; what becomes of a whole training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

import msgspec

from breakeven.simulate import Bound, StepPrediction
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_bytes, format_duration
from breakeven.verdict.crossover import log_ratio, rescaled
from breakeven.verdict.report import (
    Choice,
    DeviceKind,
    DeviceResult,
    ProgramPart,
    ProgramSummary,
    TrainingTime,
    Verdict,
)

# Step times of GPUs within this ratio are not told apart by a prediction.
_ALIKE = 1.2
# What takes more of a step than this is what the step waits for.
_MOST_OF_STEP = 0.8
# A time of the CPU whose interval is wider and reaches a GPU's says nothing.
_WIDEST = 10.0


def device_result(prediction: StepPrediction) -> DeviceResult:
    """Return the result that a report shows for a predicted GPU."""
    return DeviceResult(
        device=prediction.device.name,
        kind=DeviceKind.GPU,
        source=Source.PREDICTED,
        precision=prediction.precision.value,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        bound=prediction.bound,
        peak_memory_bytes=prediction.peak_memory_bytes,
        fits=prediction.fits,
        caveats=prediction.caveats,
        calibrated_on=prediction.calibrated_on,
    )


def decide(
    results: Sequence[DeviceResult], *, predictions: Sequence[StepPrediction] = ()
) -> Verdict:
    """Compare the fastest GPU that fits the step with the fastest CPU.

    Where no GPU fits, the CPU is chosen whatever the times are, and ``speedup`` may be below 1.

    Args:
        results: At least one CPU and one GPU. A result that does not say whether it fits does.
        predictions: What is known of the GPUs' steps in detail, for the reason in the verdict.

    Raises:
        ValueError: There is no CPU or no GPU among the results, or a time is not positive.
    """
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    gpus = [result for result in results if result.kind is DeviceKind.GPU]
    if not cpus or not gpus:
        raise ValueError("a verdict needs at least one result of a CPU and one of a GPU")
    cpu = min(cpus, key=by_trust_and_time)
    fitting = [gpu for gpu in gpus if gpu.fits is not False]
    gpu = min(fitting or gpus, key=_step_ns)
    detail = next((p for p in predictions if p.device.name == gpu.device), None)

    ratio = log_ratio(cpu, gpu)
    if not fitting:
        return _verdict(Choice.CPU, cpu, gpu, because=_because_none_fits(gpus))
    is_open = not (ratio.is_won or ratio.is_lost)
    if is_open and (cpu.is_disturbed or cpu.high_ns > _WIDEST * cpu.low_ns):
        return _verdict(Choice.UNDECIDED, gpu, cpu, because=_because_undecided(cpu))
    # On more threads the CPU may be faster than where it was left alone.
    rival = next((other for other in cpus if other.is_disturbed and _may_beat(other, gpu)), None)
    if ratio.is_won and rival is not None:
        return _verdict(Choice.UNDECIDED, gpu, cpu, because=_because_undecided(rival))
    if ratio.is_won:
        because = _because_gpu(gpu, cpu, detail) + _because_alike(fitting)
        return _verdict(Choice.GPU, gpu, cpu, because=because)
    if ratio.is_lost:
        return _verdict(Choice.CPU, cpu, gpu, because=_because_cpu(gpu, cpu, detail))
    return _verdict(Choice.TOO_CLOSE, gpu, cpu, because=_because_close(gpu, cpu, detail))


def by_trust_and_time(result: DeviceResult) -> tuple[bool, float]:
    """Return what puts results in order: those that were not disturbed first, then by time."""
    return result.is_disturbed, result.step_ns


def _step_ns(result: DeviceResult) -> float:
    return result.step_ns


def _verdict(choice: Choice, device: DeviceResult, over: DeviceResult, *, because: str) -> Verdict:
    ratio = log_ratio(over, device)
    return Verdict(
        choice=choice,
        device=device.device,
        over=over.device,
        speedup=math.exp(ratio.value),
        low=math.exp(ratio.low),
        high=math.exp(ratio.high),
        because=because,
    )


def _because_none_fits(gpus: Sequence[DeviceResult]) -> str:
    needs = min(gpu.peak_memory_bytes or 0 for gpu in gpus)
    return (
        f"The step needs {format_bytes(needs)} of memory, more than any of the GPUs compared has."
    )


def _because_alike(gpus: Sequence[DeviceResult]) -> str:
    """Say that the choice among the GPUs is open, where it is."""
    slowest = max(map(_step_ns, gpus))
    if len(gpus) < 2 or slowest > _ALIKE * min(map(_step_ns, gpus)):
        return ""
    return f" All {len(gpus)} GPUs compared are about as fast: the cheapest will do."


def _because_undecided(cpu: DeviceResult) -> str:
    if cpu.is_disturbed:
        return (
            f"Other processes kept every step on {cpu.device} from running: it takes between "
            f"{_about(cpu.low_ns)} and {_about(cpu.high_ns)}. Run it again when this machine is "
            "less busy."
        )
    return (
        f"A step on {cpu.device} takes {_range(cpu)}, by few steps that differ much: too uncertain "
        "to compare it with anything."
    )


def _may_beat(cpu: DeviceResult, gpu: DeviceResult) -> bool:
    return cpu.low_ns < gpu.high_ns


def _because_close(gpu: DeviceResult, cpu: DeviceResult, detail: StepPrediction | None) -> str:
    if detail is not None and _waits_for_loader(detail):
        return f"{_because_loader(detail)}. Make it faster before you pay for {gpu.device}."
    return (
        f"{gpu.device} takes {_range(gpu)}, {cpu.device} {_range(cpu)}: the difference is within "
        "the intervals, so measure on that GPU before you pay for it."
    )


def _waits_for_loader(detail: StepPrediction) -> bool:
    """Return whether the workers of a loader take most of the step."""
    return detail.loader_ns > _MOST_OF_STEP * detail.estimate.value_ns


def _because_loader(detail: StepPrediction) -> str:
    return (
        f"The worker processes of the DataLoader take {_about(detail.loader_ns)} for the data of a "
        "step, whatever computes it"
    )


def _because_gpu(gpu: DeviceResult, cpu: DeviceResult, detail: StepPrediction | None) -> str:
    if detail is None:
        return (
            f"{gpu.device} takes {_about(gpu.step_ns)} for a step for which "
            f"{cpu.device} takes {_about(cpu.step_ns)}."
        )
    return (
        f"The work of a step keeps {gpu.device} busy for {_about(detail.device_busy_ns)}, "
        f"and {cpu.device} for {_about(cpu.step_ns)}{_remainder(gpu, detail)}."
    )


def _remainder(gpu: DeviceResult, detail: StepPrediction) -> str:
    """Say what the GPU's step consists of, where that is not its work."""
    own_work = "the host's own work makes"
    if _waits_for_loader(detail):
        own_work = "the workers of the DataLoader make"
    what_makes = {
        Bound.LAUNCH: f"launching {detail.num_kernels} kernels makes",
        Bound.TRANSFER: "copies between host and GPU make",
        Bound.SYNC: "waiting for each other makes",
        Bound.HOST_DATA: own_work,
        Bound.HOST_OPTIMIZER: "the optimizer on the host makes",
    }
    if detail.bound not in what_makes:
        return ""
    return f"; {what_makes[detail.bound]} it {_about(gpu.step_ns)}"


def _because_cpu(gpu: DeviceResult, cpu: DeviceResult, detail: StepPrediction | None) -> str:
    done = f"{cpu.device} is done in {_about(cpu.step_ns)}"
    if detail is None:
        return f"{gpu.device} takes {_about(gpu.step_ns)} for a step; {done}."
    busy = _about(detail.device_busy_ns)
    match detail.bound:
        case Bound.LAUNCH:
            return (
                f"Launching {detail.num_kernels} kernels takes "
                f"{_about(detail.launch_ns)}, the arithmetic {busy}: no GPU can go below "
                f"that, and {done}."
            )
        case Bound.SYNC:
            return (
                f"Host and GPU wait for each other: a step takes {_about(gpu.step_ns)} "
                f"for {busy} of work on {gpu.device}; {done}."
            )
        case Bound.TRANSFER:
            return (
                f"Copies between host and GPU make a step {_about(gpu.step_ns)} on "
                f"{gpu.device}; {done}."
            )
        case Bound.HOST_DATA if _waits_for_loader(detail):
            return f"{_because_loader(detail)}; {done}."
        case Bound.HOST_DATA | Bound.HOST_OPTIMIZER:
            where = "the optimizer" if detail.bound is Bound.HOST_OPTIMIZER else "its own work"
            return (
                f"The host spends {_about(detail.host_ns)} per step, most of it on "
                f"{where}, which no GPU takes off it; {done}."
            )
        case Bound.LATENCY:
            return (
                f"The kernels of a step wait for each other and are too small to fill "
                f"{gpu.device}: they take {busy}; {done}."
            )
        case Bound.COMPUTE | Bound.MEMORY:
            return f"The work of a step keeps {gpu.device} busy for {busy}; {done}."
        case _ as unreachable:
            assert_never(unreachable)


def _range(result: DeviceResult) -> str:
    return f"{_about(result.low_ns)} to {_about(result.high_ns)}"


def _about(duration_ns: float) -> str:
    # Two digits: no prediction is surer, and the table has the rest.
    return format_duration(duration_ns, 2)


# What a process takes longer to its first step on a GPU: the CUDA context, the libraries and the
# first load of each kernel. Judgement, from 1-2 s (torch 1.3, RTX 2080 Ti: pytorch issue 39005) and
# 4 s (torch 1.1: pytorch issue 22583) for the first tensor alone.
_GPU_START_NS = (1.0 * NS_PER_S, 3.0 * NS_PER_S, 8.0 * NS_PER_S)


class ProgramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a script besides its steps, on this CPU.

    Args:
        startup_ns: From its beginning to the end of its first step.
        data_ns: Time of a step that it waits for its next batch.
        other_ns: Time per step of what is done between some of the steps; None where that is not
            known, as on a busy machine.
        other_low_ns: Lower end of its 90 % interval.
        other_high_ns: Upper end.
        parts: What that is.
        unevenness: Mean step over the median one: more than 1 where some take longer.
    """

    startup_ns: float = 0.0
    data_ns: float = 0.0
    other_ns: float | None = None
    other_low_ns: float = 0.0
    other_high_ns: float = 0.0
    parts: tuple[ProgramPart, ...] = ()
    unevenness: float = 1.0


def program_of(
    verdict: Verdict,
    results: Sequence[DeviceResult],
    facts: ProgramFacts,
    num_steps: int | None = None,
) -> ProgramSummary:
    """Return what becomes of the whole training.

    What is no step is taken to stay on the CPU, and to take as long there as it does.

    Args:
        verdict: Of the step.
        results: Those that it rests on.
        facts: What there is besides the steps.
        num_steps: Steps of the training; None where it is not known how long it is.
    """
    named = {result.device: result for result in results}
    device, over = named[verdict.device], named[verdict.over]
    cpu = over if over.kind is DeviceKind.CPU else device
    other_ns = facts.other_ns or 0.0
    whole_ns = cpu.step_ns + other_ns
    # What is not the step dampens the ratio by as much as it takes, and that is an estimate too.
    ratios = [
        log_ratio(rescaled(over, added_ns=added_ns), rescaled(device, added_ns=added_ns))
        for added_ns in (other_ns, facts.other_low_ns, facts.other_high_ns)
    ]
    return ProgramSummary(
        startup_ns=facts.startup_ns,
        data_ns=facts.data_ns,
        other_ns=facts.other_ns,
        other_low_ns=facts.other_low_ns,
        other_high_ns=facts.other_high_ns,
        step_fraction=cpu.step_ns / whole_ns,
        parts=facts.parts,
        unevenness=facts.unevenness,
        speedup=math.exp(ratios[0].value),
        low=math.exp(min(ratio.low for ratio in ratios)),
        high=math.exp(max(ratio.high for ratio in ratios)),
        num_steps=num_steps,
        times=()
        if num_steps is None
        else tuple(
            _training_time(result, facts, num_steps)
            for result in results
            if result.fits is not False
        ),
    )


def facts_of(program: ProgramSummary) -> ProgramFacts:
    """Return what was seen of the script, to judge it again on other devices."""
    names = ProgramFacts.__struct_fields__
    return ProgramFacts(**{name: getattr(program, name) for name in names})


def _training_time(result: DeviceResult, facts: ProgramFacts, num_steps: int) -> TrainingTime:
    """Return the time of so many steps, from the beginning of the script."""
    start_ns = _GPU_START_NS if result.kind is DeviceKind.GPU else (0.0, 0.0, 0.0)
    other_ns = facts.other_ns or 0.0
    low_ns, value_ns, high_ns = (
        facts.startup_ns + start + (num_steps - 1) * (facts.unevenness * step_ns + other)
        for start, step_ns, other in zip(
            start_ns,
            (result.low_ns, result.step_ns, result.high_ns),
            (facts.other_low_ns, other_ns, facts.other_high_ns),
            strict=True,
        )
    )
    return TrainingTime(device=result.device, total_ns=value_ns, low_ns=low_ns, high_ns=high_ns)
