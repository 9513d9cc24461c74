"""The step on this CPU under other settings, measured beside the step as it is."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.capture import PlainRun
from breakeven.device import HostSpec
from breakeven.processor import has_bf16_hardware
from breakeven.session import LONGEST_STEP_NS, Runs
from breakeven.timing import CpuFacts, CpuSetting, CpuTrial
from breakeven.trace import Configuration, Op, StepTrace

# From this part of subnormal values on it is worth to measure the step without them.
_SUBNORMAL_FRACTION = 0.001


def try_cpu_settings(
    runs: Runs, plain: PlainRun, trace: StepTrace, host: HostSpec
) -> CpuFacts | None:
    """Return the step under other settings of the CPU; None where it is too slow to try.

    Args:
        runs: Runs the script.
        plain: The step as it is.
        trace: The recorded step.
        host: The machine of the runs; costs of another one say nothing about this CPU.
    """
    if plain.measurement.median_ns > LONGEST_STEP_NS:
        return None
    trials: list[CpuTrial] = []
    loads = [plain.load_fraction]
    for setting, configuration in _settings(plain, trace):
        run = runs.measure_under(configuration)
        if run is not None and configuration.num_threads in (0, run.num_threads):
            loads.append(run.load_fraction)
            trials.append(CpuTrial(setting=setting, estimate=run.measurement.estimate))
    return CpuFacts(
        name=plain.processor,
        estimate=plain.measurement.estimate,
        num_threads=plain.num_threads,
        num_cores=trace.facts.num_cores,
        trials=tuple(trials),
        has_bf16=has_bf16_hardware(),
        dispatch_ns=host.op_ns + host.python_ns + host.autograd_ns if host.is_measured else 0.0,
        load_fraction=max(loads),
    )


def _settings(plain: PlainRun, trace: StepTrace) -> Iterator[tuple[str, Configuration]]:
    """Yield what is worth to be tried: other numbers of threads, and what the step gives cause for.

    Of threads: one, half of the processors, all of them.
    """
    num_cores = trace.facts.num_cores
    for number in sorted({1, max(1, num_cores // 2), num_cores} - {plain.num_threads}):
        yield f"{CpuSetting.THREADS}={number}", Configuration(num_threads=number)
    if trace.facts.subnormal_fraction > _SUBNORMAL_FRACTION:
        yield CpuSetting.FLUSH_DENORMAL, Configuration(flushes_denormals=True)
    if any(_is_channels_first(op) for op in trace.ops):
        yield CpuSetting.CHANNELS_LAST, Configuration(channels_last=True)


def _is_channels_first(op: Op) -> bool:
    """Return whether a two-dimensional convolution reads weights that are not channels last."""
    if not op.name.startswith("aten.convolution.") or len(op.inputs) < 2:
        return False
    weight = op.inputs[1]
    return len(weight.shape) == 4 and weight.layout != "channels_last"
