"""Words about the step as generated code."""

from __future__ import annotations

from breakeven.report.result_text import fastest_gpu, named_label, reference_cpu, speed_text
from breakeven.report.run_text import found_sentence
from breakeven.report.text import printable, ratio_alone
from breakeven.units import format_duration
from breakeven.verdict import (
    CheckReport,
    Crossover,
    DeviceResult,
    NoCrossover,
    cpu_result,
)


def generated_result(report: CheckReport) -> DeviceResult | None:
    """Return this CPU's step as generated code; None where that gains too little to be shown."""
    step, cpu = report.generated, reference_cpu(report.results)
    if step is None or cpu is None or not step.is_worth_it:
        return None
    return cpu_result(
        cpu.device, step.step, precision=cpu.precision, fits=True, setting="generated step"
    )


def generated_sentence(report: CheckReport) -> str | None:
    """Return what generated code makes of the step, where it is shown, and how to have it."""
    step, result = report.generated, generated_result(report)
    if step is None or result is None:
        return None
    gpu = fastest_gpu(report.results)
    against = "" if gpu is None else f" and {speed_text(result, gpu)}"
    return (
        f"With forward, backward and update as generated code, a step takes this CPU "
        f"{format_duration(step.step_ns, 2)}, {format_duration(step.kept_ns, 2)} of them for the "
        f"rest of the loop: {ratio_alone(step.speedup)} as fast as now"
        f"{against}. breakeven tune tries that and breakeven run trains so, or call "
        "breakeven.fast_step in the loop yourself."
    )


def generated_crossover_sentence(report: CheckReport) -> str | None:
    """Return from which size on a GPU wins against generated code; None where it is not told."""
    match report.generated_crossover:
        case None:
            return None
        case Crossover() as crossover:
            winner = named_label(report.results, crossover.device)
            return found_sentence(crossover, winner, "generated code on this CPU")
        case NoCrossover() as none:
            return printable(none.none_because, 600)
