"""Words about the step as one CUDA graph."""

from __future__ import annotations

from breakeven.report.generated_text import generated_result
from breakeven.report.result_text import speed_against
from breakeven.report.text import duration_with_interval, printable, ratio_with_interval
from breakeven.units import format_duration
from breakeven.verdict import CheckReport, DeviceResult


def captured_result(report: CheckReport) -> DeviceResult | None:
    """Return the fastest GPU's step from a CUDA graph; None where it was not predicted."""
    return None if report.captured is None else report.captured.result


def captured_sentence(report: CheckReport) -> str | None:
    """Return what a CUDA graph makes of the step, against the generated step if there is one."""
    captured = report.captured
    if captured is None:
        return None
    because = ""
    if captured.because:
        because = f"One CUDA graph cannot replay this step: {printable(captured.because)}. "
    gpu, cpu = captured.result, generated_result(report)
    if gpu is None:
        return because.rstrip()
    way = 'torch.compile(mode="reduce-overhead")' if because else "a CUDA graph"
    named = f"{printable(gpu.device)} with {way}"
    time = duration_with_interval(gpu.step_ns, gpu.low_ns, gpu.high_ns)
    if cpu is None:
        return f"{because}{named} is predicted to take {time} for a step."
    is_cpu_first = cpu.step_ns < gpu.step_ns
    ratio = speed_against(cpu, gpu) if is_cpu_first else speed_against(gpu, cpu)
    is_open = " (too close to call)" if ratio[1] < 1 else ""
    return (
        f"{because}At their best: a generated step takes this CPU "
        f"{format_duration(cpu.step_ns, 2)}, {named} {time}, predicted: the "
        f"{'CPU' if is_cpu_first else 'GPU'} is {ratio_with_interval(*ratio)} as fast{is_open}."
    )
