"""Made-up reports for the tests of renderers and of the command line."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.report import SCHEMA_VERSION, CheckReport
from breakeven.timing import Estimate, Source
from breakeven.verdict import (
    Bound,
    CapturedStep,
    Choice,
    Crossover,
    Curve,
    CurvePoint,
    DeviceKind,
    DeviceResult,
    Finding,
    GeneratedRun,
    HostSummary,
    NoCrossover,
    StepSummary,
    Verdict,
    generated_step,
)

US = 1_000.0
MS = 1_000_000.0
CPU_NAME = "AMD EPYC 7B13"
HOST = HostSummary(
    name=CPU_NAME,
    num_threads=2,
    source="calibrated here, 2026-05-04",
    torch_version="2.13.0",
    python_version="3.11.7",
)


def gpu(
    device: str, step_ns: float, low_ns: float, high_ns: float, bound: Bound, **changes: object
) -> DeviceResult:
    result = DeviceResult(
        device=device,
        kind=DeviceKind.GPU,
        source=Source.PREDICTED,
        precision="fp32",
        step_ns=step_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        bound=bound,
        peak_memory_bytes=4_200_000,
        fits=True,
    )
    return msgspec.structs.replace(result, **changes)


def cpu(step_ns: float, low_ns: float, high_ns: float) -> DeviceResult:
    return DeviceResult(
        device=CPU_NAME,
        kind=DeviceKind.CPU,
        source=Source.MEASURED,
        precision="fp32",
        step_ns=step_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        bound=Bound.COMPUTE,
        peak_memory_bytes=None,
        fits=None,
        num_samples=43,
    )


def curve(
    device: str, kind: DeviceKind, source: Source, fixed_ns: float, sample_ns: float
) -> Curve:
    """Return a step time that grows with the batch size, at powers of 2 up to 16,384."""
    return Curve(
        device=device,
        kind=kind,
        axis="batch_size",
        points=tuple(
            CurvePoint(
                size=size,
                step_ns=fixed_ns + sample_ns * size,
                low_ns=0.8 * (fixed_ns + sample_ns * size),
                high_ns=1.25 * (fixed_ns + sample_ns * size),
                source=source,
            )
            for size in (2**exponent for exponent in range(15))
        ),
    )


def cpu_wins() -> CheckReport:
    return CheckReport(
        schema_version=SCHEMA_VERSION,
        target="examples/rnn_stream.py",
        host=HOST,
        step=StepSummary(
            num_ops=112,
            num_kernels=98,
            num_syncs=1,
            h2d_bytes=6_400,
            d2h_bytes=4,
            batch_size=100,
            num_parameters=136_456,
            host_ns=1.31 * MS,
        ),
        results=(
            gpu("RTX 3060", 1.9 * MS, 1.5 * MS, 2.4 * MS, Bound.LAUNCH),
            gpu("T4", 2.1 * MS, 1.6 * MS, 2.8 * MS, Bound.LAUNCH),
            cpu(612 * US, 590 * US, 641 * US),
            gpu("RTX 4090", 1.41 * MS, 1.1 * MS, 1.75 * MS, Bound.LAUNCH),
            gpu("A100 SXM4 80GB", 1.52 * MS, 1.2 * MS, 1.9 * MS, Bound.SYNC),
        ),
        verdict=Verdict(
            choice=Choice.CPU,
            device=CPU_NAME,
            over="RTX 4090",
            speedup=2.304,
            low=1.8,
            high=2.9,
            because=(
                "The step is 98 kernels of a few µs each, and Python needs 1.3 ms to launch "
                "them on any GPU; this CPU is done in 0.6 ms."
            ),
        ),
        crossover=Crossover(
            axis="batch_size",
            device="RTX 4090",
            value=640,
            low=410,
            high=1_300,
            searched=(1, 16_384),
        ),
        findings=(
            Finding(
                code="SYNC001",
                cause="SYNC_ITEM",
                title="loss.item() makes the host wait for the GPU in every step",
                file="examples/rnn_stream.py",
                line=61,
                share_fraction=0.26,
                gain_fraction=0.24,
                fix="add the losses up on the GPU (total += loss.detach()), and read the sum "
                "once per epoch",
            ),
            Finding(
                code="OPT002",
                cause="OPTIMIZER_NOT_FUSED",
                title="Adam runs as 12 kernels; it can run as one",
                file="examples/rnn_stream.py",
                line=38,
                share_fraction=0.11,
                gain_fraction=0.08,
                fix="torch.optim.Adam(..., fused=True)",
            ),
        ),
        caveats=(Caveat(code="short-run", message="the step was measured over 43 steps only."),),
        curves=(
            curve(CPU_NAME, DeviceKind.CPU, Source.MEASURED, 0.4 * MS, 1.6 * US),
            curve("T4", DeviceKind.GPU, Source.PREDICTED, 2.1 * MS, 0.05 * US),
            curve("RTX 4090", DeviceKind.GPU, Source.PREDICTED, 1.4 * MS, 0.01 * US),
        ),
    )


def gpu_wins() -> CheckReport:
    slow_bus = Caveat(code="pageable-copy", message="copies from pageable memory vary by host.")
    return CheckReport(
        schema_version=SCHEMA_VERSION,
        target="train_resnet.py",
        host=HOST,
        step=StepSummary(
            num_ops=1_204,
            num_kernels=1_466,
            num_syncs=0,
            h2d_bytes=38_535_168,
            d2h_bytes=0,
            batch_size=64,
            num_parameters=25_557_032,
            host_ns=14.2 * MS,
        ),
        results=(
            cpu(9.84e9, 9.5e9, 10.2e9),
            gpu(
                "RTX 4090",
                88 * MS,
                71 * MS,
                109 * MS,
                Bound.COMPUTE,
                peak_memory_bytes=6_200_000_000,
            ),
            gpu(
                "H100 SXM5 80GB",
                61 * MS,
                48 * MS,
                78 * MS,
                Bound.MEMORY,
                peak_memory_bytes=6_200_000_000,
            ),
            gpu(
                "T4",
                520 * MS,
                400 * MS,
                670 * MS,
                Bound.COMPUTE,
                peak_memory_bytes=6_200_000_000,
                caveats=(slow_bus,),
            ),
            gpu(
                "GTX 1050 Ti",
                1.9e9,
                1.1e9,
                3.4e9,
                Bound.COMPUTE,
                peak_memory_bytes=6_200_000_000,
                fits=False,
                caveats=(slow_bus,),
            ),
        ),
        verdict=Verdict(
            choice=Choice.GPU,
            device="H100 SXM5 80GB",
            over=CPU_NAME,
            speedup=161.0,
            low=126.0,
            high=205.0,
            because="Convolutions are 93 % of the step, and the GPU does them 200 times faster.",
        ),
        crossover=NoCrossover(
            none_because="H100 SXM5 80GB is faster at every batch size from 1 to 1024.",
            faster=DeviceKind.GPU,
            searched=(1, 1_024),
        ),
    )


def too_close() -> CheckReport:
    return CheckReport(
        schema_version=SCHEMA_VERSION,
        target="mnist_mlp.py",
        host=HOST,
        step=StepSummary(
            num_ops=61,
            num_kernels=57,
            num_syncs=2,
            h2d_bytes=0,
            d2h_bytes=0,
            batch_size=None,
            num_parameters=669_706,
            host_ns=0.8 * MS,
        ),
        results=(
            cpu(1.04 * MS, 1.0 * MS, 1.09 * MS),
            gpu("T4", 960 * US, 700 * US, 1.35 * MS, Bound.HOST_OPTIMIZER),
        ),
        verdict=Verdict(
            choice=Choice.TOO_CLOSE,
            device="T4",
            over=CPU_NAME,
            speedup=1.083,
            low=0.77,
            high=1.5,
            because="The intervals of the two overlap.",
        ),
        crossover=NoCrossover(
            none_because="the script does not tell its batch size; sweep it yourself with "
            "breakeven check mnist_mlp.py -- --batch N."
        ),
        caveats=(Caveat(code="no-batch-size", message="no batch size was found."),),
    )


def at_their_best() -> CheckReport:
    """Return a report of a step as generated code on this CPU and as a CUDA graph on a GPU."""

    def measured(ns: float) -> Estimate:
        return Estimate(value_ns=ns, low_ns=0.9 * ns, high_ns=1.2 * ns, source=Source.MEASURED)

    run = GeneratedRun(code=measured(12 * US), kept=measured(5 * US), compile_ns=10**9)
    return msgspec.structs.replace(
        cpu_wins(),
        generated=generated_step(run, 612 * US),
        captured=CapturedStep(
            result=gpu("RTX 4090", 38 * US, 30 * US, 50 * US, Bound.LATENCY, setting="CUDA graph")
        ),
    )


ALL = {
    "cpu_wins": cpu_wins,
    "gpu_wins": gpu_wins,
    "too_close": too_close,
    "at_their_best": at_their_best,
}
