"""Words about the step as one CUDA graph."""

from __future__ import annotations

from breakeven.report.generated_text import generated_result
from breakeven.report.result_text import speed_against
from breakeven.report.text import duration_with_interval, printable, ratio_with_interval
from breakeven.units import format_duration
from breakeven.verdict import CheckReport


def captured_sentence(report: CheckReport) -> str:
    """Return what a CUDA graph makes of the step, against the generated step if there is one."""
    if report.captured is None:
        return ""
    gpu, cpu = report.captured.result, generated_result(report)
    because, way = "", "a CUDA graph"
    if report.captured.because:
        because = f"One CUDA graph cannot replay this step: {printable(report.captured.because)}. "
        way = 'torch.compile(mode="reduce-overhead")'
    if gpu is None:
        return because.rstrip()
    named = f"{printable(gpu.device)} with {way}"
    time = duration_with_interval(gpu.step_ns, gpu.low_ns, gpu.high_ns)
    if cpu is None:
        return f"{because}{named} is predicted to take {time} for a step."
    faster, slower = sorted((cpu, gpu), key=lambda result: result.step_ns)
    ratio = speed_against(faster, slower)
    is_open = " (too close to call)" if ratio[1] < 1 else ""
    return (
        f"{because}At their best: a generated step takes this CPU "
        f"{format_duration(cpu.step_ns, 2)}, {named} {time}, predicted: the "
        f"{faster.kind.upper()} is {ratio_with_interval(*ratio)} as fast{is_open}."
    )
