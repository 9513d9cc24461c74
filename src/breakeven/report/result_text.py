"""How results of devices are called, sorted and marked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakeven.report.text import plural, printable, ratio_with_interval
from breakeven.timing import Source
from breakeven.verdict import DeviceKind, DeviceResult, log_ratio

# The sign of where a figure comes from, and its colour at a terminal.
SOURCE_MARKS = {Source.MEASURED: ("●", "green"), Source.PREDICTED: ("○", "blue")}


def result_name(result: DeviceResult) -> str:
    """Return a device's name, with the processor's where it is this CPU."""
    label = device_label(result)
    return label if label == printable(result.device) else f"{label} ({printable(result.device)})"


def sort_results(results: Sequence[DeviceResult]) -> tuple[DeviceResult, ...]:
    """Return results by step time, those that do not fit their device last."""
    return tuple(sorted(results, key=lambda result: (result.fits is False, result.step_ns)))


def reference_cpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the CPU that GPUs are compared with: the fastest."""
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    return min(cpus, key=lambda cpu: cpu.step_ns, default=None)


def fastest_gpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the GPU that is fastest of those that the step fits."""
    gpus = [one for one in results if one.kind is DeviceKind.GPU and one.fits is not False]
    return min(gpus, key=lambda one: one.step_ns, default=None)


def speed_text(result: DeviceResult, other: DeviceResult) -> str:
    """Return ``2× (1.8–2.2×) as fast as`` another result's device."""
    return f"{ratio_with_interval(*speed_against(result, other))} as fast as {device_label(other)}"


def speed_against(result: DeviceResult, other: DeviceResult) -> tuple[float, float, float]:
    """Return how many times as fast a result is as another, and the ends of the interval."""
    ratio = log_ratio(other, result)
    return math.exp(ratio.value), math.exp(ratio.low), math.exp(ratio.high)


def device_label(result: DeviceResult) -> str:
    """Return a device's name; the CPU that the step was measured on is ``this CPU``."""
    if result.kind is DeviceKind.CPU and result.source is Source.MEASURED:
        return f"this CPU, {result.setting}" if result.setting else "this CPU"
    return printable(f"{result.device}, {result.setting}" if result.setting else result.device)


def named_label(results: Sequence[DeviceResult], device: str) -> str:
    """Return the label of a device by its name, whether it is among results or not."""
    named = (result for result in results if result.device == device)
    return next(map(device_label, named), printable(device))


def sample_legend(counts: Sequence[int], *, is_predicted: bool = True, noun: str = "step") -> str:
    """Return ``● measured (5 to 43 steps)   ○ predicted``.

    Args:
        counts: Samples of each measured time.
        is_predicted: Whether there are predictions.
        noun: What was counted.
    """
    marks: list[str] = []
    if counts:
        least = f"{min(counts):,} to " if min(counts) < max(counts) else ""
        marks.append(f"● measured ({least}{plural(max(counts), noun)})")
    return "   ".join([*marks, *(["○ predicted"] if is_predicted else [])])
