"""rnn-stream: a small recurrent network at a small and a large batch, as asked on Colab."""

from __future__ import annotations

from breakeven.report import (
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemTable,
)
from breakeven.simulate import StepPrediction
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import FACTS, judge, ratio_of, report, table
from breakeven.timing import Estimate
from breakeven.units import NS_PER_S, format_digits
from breakeven.verdict import threads_text

_FACTS = FACTS["rnn-stream"]
_COLUMNS = {
    "device": ColumnKind.TEXT,
    "fed by": ColumnKind.TEXT,
    "step": ColumnKind.TIME_NS,
    "it/s": ColumnKind.PER_SECOND,
    "vs CPU": ColumnKind.RATIO,
}
# Colab's two virtual processors are the two hyperthreads of one core.
_COLAB_THREADS = 1
# Sampling time of a run, in seconds; steps of the large batch are slow.
_BUDGET_S = 2.0


def run(bench: Bench) -> SystemReport:
    """Measure both batch sizes here, and predict Colab's GPUs on hosts like Colab's."""
    found = [run_batch(bench, *speed) for speed in _FACTS["speeds"]]
    tables, claims = (times for times, _ in found), (one for _, some in found for one in some)
    return report("rnn-stream", bench.host_summary(), tables=tables, claims=claims)


def run_batch(
    bench: Bench, batch_size: int, cpu_per_s: float, gpu_per_s: float
) -> tuple[SystemTable, list[Claim]]:
    """Return the times at a batch size, and a claim on each GPU of Colab.

    Args:
        bench: Runs the script.
        batch_size: Number of parallel streams.
        cpu_per_s: Iterations per second on Colab's CPU.
        gpu_per_s: Iterations per second on its GPU.
    """
    script = ("rnn_stream.py", "--batch-size", str(batch_size))
    one_thread = bench.measure(*script, num_threads=_COLAB_THREADS, budget_s=_BUDGET_S)
    all_threads = bench.measure(*script, budget_s=_BUDGET_S)
    trace = bench.step(*script)
    hosts = _FACTS["hosts"]
    colab = [
        bench.predict(trace, (gpu,), host=host)[0]
        for gpu, host in zip(_FACTS["gpus"], hosts, strict=False)
    ]
    here = bench.predict(trace, _FACTS["gpus"])
    cpu = one_thread.measurement.estimate

    def cells(device: str, host: str, step: Estimate) -> tuple[Cell, ...]:
        return device, host, step, NS_PER_S / step.value_ns, cpu.value_ns / step.value_ns

    is_one = all_threads.num_threads == one_thread.num_threads
    fed_by = (*hosts, *(gpu.fed_by or bench.host.name for gpu in here))
    times = table(
        f"Batch {batch_size:,}",
        _COLUMNS,
        (
            RowSource.PUBLISHED,
            [
                ("CPU (Colab)", "", NS_PER_S / cpu_per_s, cpu_per_s, 1.0),
                ("GPU (Colab)", "", NS_PER_S / gpu_per_s, gpu_per_s, gpu_per_s / cpu_per_s),
            ],
        ),
        (
            RowSource.MEASURED,
            [
                cells(f"this CPU, {threads_text(run.num_threads)}", "", run.measurement.estimate)
                for run in ((one_thread,) if is_one else (one_thread, all_threads))
            ],
        ),
        (
            RowSource.PREDICTED,
            [
                cells(gpu.device.name, host, gpu.estimate)
                for gpu, host in zip((*colab, *here), fed_by, strict=True)
            ],
        ),
        note=_FACTS["notes"]["batch"],
    )

    def claim(gpu: StepPrediction, host: str, fed_from_here: StepPrediction) -> Claim:
        published, factor = gpu_per_s / cpu_per_s, _FACTS["factor"]
        ratio = ratio_of(cpu, gpu.estimate)
        outcome, remark = judge(*ratio, (published / factor, published * factor))
        our_cpu, our_gpu = (NS_PER_S / step.value_ns for step in (cpu, gpu.estimate))
        because = (
            f"The GPU makes {format_digits(our_gpu / gpu_per_s, 2)}× the published it/s, this CPU "
            f"{format_digits(our_cpu / cpu_per_s, 2)}× those of Colab's"
        )
        if outcome is not ClaimOutcome.AGREES:
            because += (
                ": ours runs current torch and makes its frames on the GPU; the source does not "
                "say how its loop was fed"
            )
        return Claim(
            claim=f"At batch {batch_size:,} a {gpu.device.name} on a host like Colab's is "
            f"{format_digits(published, 2)} times as fast as the CPU, within a factor of "
            f"{format_digits(factor)}",
            published=f"{format_digits(published, 2)}× ({format_digits(gpu_per_s)} against "
            f"{format_digits(cpu_per_s)} it/s)",
            ours=f"{ratio}: {format_digits(our_gpu)} it/s fed by {host}, against "
            f"{format_digits(our_cpu)} here",
            outcome=outcome,
            because=f"{remark}{because}. Fed as in a check: "
            f"{ratio_of(cpu, fed_from_here.estimate)}.",
        )

    # Colab's GPUs are the first of those predicted on this host.
    return times, [claim(*one) for one in zip(colab, hosts, here, strict=False)]
