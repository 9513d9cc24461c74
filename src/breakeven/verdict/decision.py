"""Decides where to train, from each device's step time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from breakeven.simulate import Bound, StepPrediction
from breakeven.units import format_bytes, format_duration
from breakeven.verdict.crossover import log_ratio
from breakeven.verdict.report import Choice, Verdict
from breakeven.verdict.results import DeviceKind, DeviceResult

# A prediction cannot distinguish GPUs whose step times are within this ratio.
_ALIKE = 1.2
# A part that takes more than this fraction of a step is the bottleneck.
_MOST_OF_STEP = 0.8
# If the interval of a CPU time is wider than this ratio and overlaps the GPU's, it says nothing.
_WIDEST = 10.0


def decide(
    results: Sequence[DeviceResult], *, predictions: Sequence[StepPrediction] = ()
) -> Verdict:
    """Compare the fastest GPU that fits the step with the fastest CPU.

    If no GPU fits the step, the CPU is chosen regardless of times, and ``speedup`` may be below 1.

    Args:
        results: At least one CPU and one GPU. A result whose ``fits`` is None counts as fitting.
        predictions: Detailed predictions for the GPUs, which supply the verdict's reason.

    Raises:
        ValueError: There is no CPU or no GPU among the results, or a time is not positive.
    """
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    gpus = [result for result in results if result.kind is DeviceKind.GPU]
    if not cpus or not gpus:
        raise ValueError("a verdict needs at least one result of a CPU and one of a GPU")
    # Other work only adds time. So a disturbed time is an upper bound on the CPU's.
    cpu = replace(min(cpus, key=_step_ns), high_ns=min(cpu.high_ns for cpu in cpus))
    fitting = [gpu for gpu in gpus if gpu.fits is not False]
    gpu = min(fitting or gpus, key=_step_ns)
    detail = next((p for p in predictions if p.device.name == gpu.device), None)

    ratio = log_ratio(cpu, gpu)
    if not fitting:
        needs = format_bytes(min(gpu.peak_memory_bytes or 0 for gpu in gpus))
        because = f"The step needs {needs} of memory, more than any of the GPUs compared has."
        return _verdict(Choice.CPU, cpu, gpu, because=because)
    is_open = not (ratio.is_won or ratio.is_lost)
    if is_open and (cpu.is_disturbed or cpu.high_ns > _WIDEST * cpu.low_ns):
        return _verdict(Choice.UNDECIDED, gpu, cpu, because=_because_undecided(cpu))
    # The CPU may be faster with a number of threads whose measurement was disturbed.
    rival = next((each for each in cpus if each.is_disturbed and each.low_ns < gpu.high_ns), None)
    if ratio.is_won and rival is not None:
        return _verdict(Choice.UNDECIDED, gpu, cpu, because=_because_undecided(rival))
    if ratio.is_won:
        because = _because_gpu(gpu, cpu, detail) + _because_alike(fitting)
        return _verdict(Choice.GPU, gpu, cpu, because=because)
    if ratio.is_lost:
        return _verdict(Choice.CPU, cpu, gpu, because=_because_cpu(gpu, cpu, detail))
    return _verdict(Choice.TOO_CLOSE, gpu, cpu, because=_because_close(gpu, cpu, detail))


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


def _because_alike(gpus: Sequence[DeviceResult]) -> str:
    """Say that any GPU will do, if all are about equally fast."""
    slowest = max(map(_step_ns, gpus))
    if len(gpus) < 2 or slowest > _ALIKE * min(map(_step_ns, gpus)):
        return ""
    return f" All {len(gpus)} GPUs compared are about as fast: the cheapest will do."


def _because_undecided(cpu: DeviceResult) -> str:
    if cpu.is_disturbed:
        return (
            f"Other processes delayed every step on {cpu.device}: it takes between "
            f"{_about(cpu.low_ns)} and {_about(cpu.high_ns)}. Run it again when this machine is "
            "less busy."
        )
    return (
        f"A step on {cpu.device} takes {_range(cpu)}: the few steps timed differ too much to "
        "compare it with any device."
    )


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
        "step, on any device"
    )


def _because_gpu(gpu: DeviceResult, cpu: DeviceResult, detail: StepPrediction | None) -> str:
    if detail is None:
        return (
            f"A step takes {_about(gpu.step_ns)} on {gpu.device} and "
            f"{_about(cpu.step_ns)} on {cpu.device}."
        )
    return (
        f"The work of a step keeps {gpu.device} busy for {_about(detail.device_busy_ns)}, "
        f"and {cpu.device} for {_about(cpu.step_ns)}{_remainder(gpu, detail)}."
    )


def _remainder(gpu: DeviceResult, detail: StepPrediction) -> str:
    """Say what dominates the GPU's step, unless it is the GPU's own work."""
    what = _what_makes(detail)
    return f"; {what} it {_about(gpu.step_ns)}" if what else ""


def _what_makes(detail: StepPrediction) -> str:
    """Name what makes the GPU's step as long as it is, with its verb; empty for its own work."""
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
    return what_makes.get(detail.bound, "")


def _because_cpu(gpu: DeviceResult, cpu: DeviceResult, detail: StepPrediction | None) -> str:
    done = f"{cpu.device} is done in {_about(cpu.step_ns)}"
    if detail is None:
        return f"{gpu.device} takes {_about(gpu.step_ns)} for a step; {done}."
    busy, what = _about(detail.device_busy_ns), _what_makes(detail)
    if _waits_for_loader(detail) and detail.bound in (Bound.LAUNCH, Bound.HOST_DATA):
        return f"{_because_loader(detail)}; {done}."
    if detail.bound is Bound.LAUNCH:
        return (
            f"Launching {detail.num_kernels} kernels takes {_about(detail.launch_ns)}, the "
            f"arithmetic {busy}: no GPU can go below that without a CUDA graph, and {done}."
        )
    if what:
        made = f"{what[0].upper()}{what[1:]} a step take {_about(gpu.step_ns)}"
        return f"{made} on {gpu.device}, for {busy} of work there; {done}."
    return f"The work of a step keeps {gpu.device} busy for {busy}; {done}."


def _range(result: DeviceResult) -> str:
    return f"{_about(result.low_ns)} to {_about(result.high_ns)}"


def _about(duration_ns: float) -> str:
    # Two digits: no prediction is more precise, and the table shows the rest.
    return format_duration(duration_ns, 2)
