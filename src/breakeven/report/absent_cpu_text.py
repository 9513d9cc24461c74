"""Words about the step on CPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.report.result_text import device_label, fastest_gpu, reference_cpu, speed_text
from breakeven.units import format_duration
from breakeven.verdict import CheckReport


def absent_cpu_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what each CPU that was named takes, against this one and the fastest GPU."""
    others = [reference_cpu(report.results), fastest_gpu(report.results)]
    for absent in report.absent_cpus:
        against = [speed_text(absent, other) for other in others if other is not None]
        yield (
            f"On {device_label(absent)}, a step is predicted to take "
            f"{format_duration(absent.step_ns, 2)}: {' and '.join(against)}."
        )
    if report.absent_cpus:
        yield "The verdict compares GPUs with this CPU alone, which was measured."
