"""Words about the step on CPUs that are not here."""

from __future__ import annotations

import math
from collections.abc import Iterator

from breakeven.report.run_text import device_label, reference_cpu
from breakeven.report.text import ratio_with_interval
from breakeven.units import format_duration
from breakeven.verdict import CheckReport, DeviceKind, DeviceResult, log_ratio


def absent_cpu_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what each CPU that was named takes, against this one and the fastest GPU."""
    cpu = reference_cpu(report.results)
    gpus = [one for one in report.results if one.kind is DeviceKind.GPU and one.fits is not False]
    for absent in report.absent_cpus:
        against = [] if cpu is None else [f"{_ratio(cpu, absent)} as fast as {device_label(cpu)}"]
        if gpus:
            gpu = min(gpus, key=lambda one: one.step_ns)
            against.append(f"{_ratio(gpu, absent)} as fast as {device_label(gpu)}")
        yield (
            f"On {device_label(absent)}, a step is predicted to take "
            f"{format_duration(absent.step_ns, 2)}: {' and '.join(against)}."
        )
    if report.absent_cpus:
        yield "The verdict compares GPUs with this CPU alone, which was measured."


def _ratio(other: DeviceResult, absent: DeviceResult) -> str:
    ratio = log_ratio(other, absent)
    return ratio_with_interval(*map(math.exp, (ratio.value, ratio.low, ratio.high)))
