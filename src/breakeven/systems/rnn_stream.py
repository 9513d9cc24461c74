"""rnn-stream: a small recurrent network at a small and a large batch, as asked on Colab."""

from __future__ import annotations

from breakeven.simulate import StepPrediction
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import Findings, judge, ratio_of, rows, table
from breakeven.systems.published import (
    RNN_STREAM_BANDS,
    RNN_STREAM_FACTOR,
    RNN_STREAM_SPEEDS,
    StreamSpeed,
)
from breakeven.timing import Estimate
from breakeven.units import NS_PER_S, format_digits
from breakeven.verdict import Cell, Claim, ClaimOutcome, ColumnKind, RowSource, SystemTable

_SCRIPT = "rnn_stream.py"
# GPUs of Colab's free tier, each with the processor that Colab's machines with it mostly had.
_COLAB = (("T4", "Xeon CPU @ 2.20GHz"), ("K80", "Xeon CPU @ 2.30GHz"))
_GPUS_HERE = ("T4", "K80", "RTX 4090", "A100 SXM4 80GB")
# Colab's two virtual processors are the two hyperthreads of one core.
_COLAB_THREADS = 1
# A run ends once its steps have taken that long; those of the large batch are slow.
_BUDGET_S = 2.0

_COLUMNS = {
    "device": ColumnKind.TEXT,
    "fed by": ColumnKind.TEXT,
    "step": ColumnKind.TIME_NS,
    "it/s": ColumnKind.PER_SECOND,
    "vs CPU": ColumnKind.RATIO,
}


def run(bench: Bench) -> Findings:
    """Measure both batch sizes here, and predict Colab's GPUs on hosts like Colab's."""
    batches = [_run_batch(bench, speed) for speed in RNN_STREAM_SPEEDS]
    return Findings(
        host=bench.host_summary(),
        tables=tuple(times for times, _ in batches),
        claims=tuple(claim for _, claims in batches for claim in claims),
    )


def _run_batch(bench: Bench, speed: StreamSpeed) -> tuple[SystemTable, tuple[Claim, ...]]:
    options = ("--batch-size", str(speed.batch_size))
    one_thread = bench.measure(_SCRIPT, *options, num_threads=_COLAB_THREADS, budget_s=_BUDGET_S)
    all_threads = bench.measure(_SCRIPT, *options, budget_s=_BUDGET_S)
    trace = bench.step(_SCRIPT, *options)
    hosts = [host for _, host in _COLAB]
    colab = [bench.predict(trace, (gpu,), host=host)[0] for gpu, host in _COLAB]
    here = bench.predict(trace, _GPUS_HERE)
    cpu = one_thread.measurement.estimate

    def cells(device: str, host: str, step: Estimate) -> tuple[Cell, ...]:
        step_ns = step.value_ns
        return device, host, step, NS_PER_S / step_ns, cpu.value_ns / step_ns

    published = (
        ("CPU (Colab)", "", NS_PER_S / speed.cpu_per_s, speed.cpu_per_s, 1.0),
        ("GPU (Colab)", "", NS_PER_S / speed.gpu_per_s, speed.gpu_per_s, speed.ratio),
    )
    num_runs = 1 if all_threads.num_threads == one_thread.num_threads else 2
    measured = (
        cells(_this_cpu(run.num_threads), "", run.measurement.estimate)
        for run in (one_thread, all_threads)[:num_runs]
    )
    fed_by = zip(
        (*colab, *here), (*hosts, *[gpu.fed_by or bench.host.name for gpu in here]), strict=True
    )
    predicted = (cells(gpu.device.name, host, gpu.estimate) for gpu, host in fed_by)
    times = table(
        f"Batch {speed.batch_size:,}",
        _COLUMNS,
        (
            *rows(RowSource.PUBLISHED, published),
            *rows(RowSource.MEASURED, measured),
            *rows(RowSource.PREDICTED, predicted),
        ),
        note="vs CPU: against one thread of the CPU measured here, for Colab's two virtual "
        "processors are one core; in the published rows against Colab's own CPU.",
    )
    # The GPUs of Colab are the first ones that are predicted on this host as well.
    claims = (
        _ratio_claim(speed, gpu, host, cpu, fed_from_here.estimate)
        for gpu, host, fed_from_here in zip(colab, hosts, here[: len(_COLAB)], strict=True)
    )
    return times, tuple(claims)


def _this_cpu(num_threads: int) -> str:
    return f"this CPU, {num_threads} thread{'' if num_threads == 1 else 's'}"


def _ratio_claim(
    speed: StreamSpeed, gpu: StepPrediction, host: str, cpu: Estimate, fed_from_here: Estimate
) -> Claim:
    ratio = ratio_of(cpu, gpu.estimate)
    judged = judge(ratio.value, ratio.low, ratio.high, RNN_STREAM_BANDS[speed.batch_size])
    cpu_per_s = NS_PER_S / cpu.value_ns
    gpu_per_s = NS_PER_S / gpu.estimate.value_ns
    return Claim(
        claim=f"At batch {speed.batch_size:,} a {gpu.device.name} on a host like Colab's is "
        f"{format_digits(speed.ratio, 2)} times as fast as the CPU, within a factor of "
        f"{format_digits(RNN_STREAM_FACTOR)}",
        published=f"{format_digits(speed.ratio, 2)}× ({format_digits(speed.gpu_per_s)} against "
        f"{format_digits(speed.cpu_per_s)} it/s)",
        ours=f"{ratio}: {format_digits(gpu_per_s)} it/s fed by {host}, against "
        f"{format_digits(cpu_per_s)} here",
        outcome=judged.outcome,
        because=judged.remark
        + _because(judged.outcome, speed, gpu_per_s, cpu_per_s)
        + f" Fed as in a check: {ratio_of(cpu, fed_from_here)}.",
    )


def _because(outcome: ClaimOutcome, speed: StreamSpeed, gpu_per_s: float, cpu_per_s: float) -> str:
    """Return where the two machines differ, each side by itself."""
    sides = (
        f"The GPU makes {_times(gpu_per_s / speed.gpu_per_s)} the published it/s, this CPU "
        f"{_times(cpu_per_s / speed.cpu_per_s)} those of Colab's"
    )
    if outcome is ClaimOutcome.AGREES:
        return f"{sides}."
    reason = (
        "ours runs torch of today and makes its frames on the GPU; how the source's loop was fed "
        "is not told"
    )
    return f"{sides}: {reason}."


def _times(ratio: float) -> str:
    return f"{format_digits(ratio, 2)}×"
