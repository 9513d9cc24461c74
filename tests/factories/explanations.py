"""Explanations made up for the tests of renderers."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.report import EXPLAIN_SCHEMA_VERSION, ExplainReport, PlanStep, TimelineSpan
from breakeven.simulate import Attribution, Bound, Finding, Severity, Side, StepCause, TimePart
from breakeven.timing import Source
from breakeven.verdict import Choice, DeviceKind, DeviceResult, StepSummary, Verdict
from factories import reports

US = 1_000.0
MS = 1_000_000.0
TARGET = "examples/rnn_stream.py"
DEVICE = "RTX 4090"
_FILE = "examples/rnn_stream.py"


def part(
    cause: str, phase: str, module: str, line: int | None, time_us: int, file: str | None = _FILE,
    frames: tuple[str, ...] = (),
) -> TimePart:  # fmt: skip
    return TimePart(
        cause=cause,
        phase=phase,
        module=module,
        file=None if line is None else file,
        line=line,
        time_ns=time_us * 1_000,
        frames=frames,
    )


def attribution(*parts: TimePart) -> Attribution:
    ordered = tuple(sorted(parts, key=lambda part: -part.time_ns))
    return Attribution(step_ns=sum(part.time_ns for part in ordered), parts=ordered)


def launch_bound_attribution() -> Attribution:
    return attribution(
        part(StepCause.DATA_LOADING, "data", "", 52, 92),
        part(StepCause.COPY_PAGEABLE, "data", "", 54, 31),
        part(StepCause.PYTHON, "forward", "StreamNet", 55, 60),
        part(StepCause.PYTHON, "forward", "StreamNet.encoder.cells.0", 22, 84),
        part(StepCause.DISPATCHER, "forward", "StreamNet.encoder.cells.0", 22, 96),
        part(StepCause.LAUNCH, "forward", "StreamNet.encoder.cells.0", 22, 130),
        part(StepCause.LAUNCH, "forward", "StreamNet.encoder.cells.1", 22, 88),
        part(StepCause.DISPATCHER, "forward", "StreamNet.head", 31, 41),
        part("device-gemm", "forward", "StreamNet.head", 31, 24),
        part(StepCause.AUTOGRAD, "backward", "StreamNet.encoder.cells.0", 57, 170),
        part(StepCause.LAUNCH, "backward", "StreamNet.encoder.cells.0", 57, 140),
        part(StepCause.LAUNCH, "backward", "StreamNet.head", 57, 66),
        part("device-batched_gemm", "backward", "StreamNet.head", 57, 35),
        part("device-elementwise", "backward", "StreamNet.encoder.cells.1", 57, 18),
        part(StepCause.OPTIMIZER, "optimizer", "", 58, 150),
        part(StepCause.SYNC, "optimizer", "", 61, 12),
        part(StepCause.DEVICE_IDLE, "optimizer", "", 61, 164),
        part(StepCause.OVERLAP, "", "", None, 9),
    )


def span(
    track: str, name: str, cause: str, phase: str, line: int | None, start_us: float, end_us: float
) -> TimelineSpan:
    return TimelineSpan(
        track=track,
        name=name,
        cause=cause,
        phase=phase,
        module="StreamNet.encoder" if phase == "forward" else "",
        file=None if line is None else _FILE,
        line=line,
        start_ns=start_us * US,
        end_ns=end_us * US,
        is_critical=(track == "host") != (cause == "device-convolution"),
    )


def launch_bound_timeline() -> tuple[TimelineSpan, ...]:
    """Return a host that issues 96 kernels one by one, and a device that waits for each."""
    spans = [
        span("host", "data", "data-loading", "data", 52, 0, 92),
        span("host", "copy to device", "copy-pageable", "data", 54, 92, 123),
        span("device", "copy to device", "copy-pageable", "data", 54, 100, 123),
    ]
    phases = [("forward", 22, 0, 40), ("backward", 57, 40, 80), ("optimizer", 58, 80, 96)]
    for phase, line, first, last in phases:
        for number in range(first, last):
            start_us = 123 + 12.5 * number
            cause = "optimizer" if phase == "optimizer" else "dispatcher"
            kernel = "device-gemm" if number % 4 == 0 else "device-elementwise"
            name = "aten.addmm.default" if number % 4 == 0 else "aten.tanh.default"
            spans += [
                span("host", name, cause, phase, line, start_us, start_us + 12.5),
                span("device", name, kernel, phase, line, start_us + 9, start_us + 11.5),
            ]
    spans.append(span("host", "wait (item)", "sync", "optimizer", 61, 1323, 1410))
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.track)))


FINDINGS = (
    Finding(
        code="SYNC001",
        cause="SYNC_ITEM",
        title="loss.item() makes the host wait for the GPU in every step",
        file=_FILE,
        line=61,
        share_fraction=0.26,
        gain_fraction=0.238,
        gain_low_fraction=0.18,
        gain_high_fraction=0.27,
        fix="add the losses up on the GPU (total += loss.detach()), and read the sum once per "
        "epoch",
        severity=Severity.HIGH,
        evidence="aten._local_scalar_dense on a tensor of the GPU, once in every step",
        fixed_ns=1.07 * MS,
        fixed_low_ns=0.8 * MS,
        fixed_high_ns=1.4 * MS,
    ),
    Finding(
        code="LOAD001",
        cause="LOADER_WORKERS0",
        title="the data loader works in the training process, and the GPU waits for it",
        file=_FILE,
        line=36,
        share_fraction=0.065,
        gain_fraction=0.064,
        gain_low_fraction=0.05,
        gain_high_fraction=0.08,
        fix="DataLoader(..., num_workers=2, persistent_workers=True)",
        severity=Severity.MEDIUM,
        evidence="92 µs in the training process between two steps; num_workers is 0",
        fixed_ns=1.32 * MS,
        fixed_low_ns=1.0 * MS,
        fixed_high_ns=1.6 * MS,
    ),
    Finding(
        code="CPU001",
        cause="THREADS_OVER",
        title="more threads than cores share the small tensors of this step",
        file=None,
        line=None,
        share_fraction=0.0,
        gain_fraction=0.12,
        gain_low_fraction=0.09,
        gain_high_fraction=0.14,
        fix="torch.set_num_threads(1)",
        severity=Severity.MEDIUM,
        side=Side.CPU,
        evidence="measured: 612 µs with 2 threads, 539 µs with 1",
    ),
    Finding(
        code="OPT002",
        cause="OPT_UNFUSED",
        title="Adam runs as 12 kernels; it can run as one",
        file=_FILE,
        line=38,
        share_fraction=0.11,
        gain_fraction=0.008,
        gain_low_fraction=0.0,
        gain_high_fraction=0.02,
        fix="torch.optim.Adam(..., fused=True)",
    ),
)


def _plan_step(
    number: int,
    cpu_us: float,
    device_us: float,
    t4_us: float,
    choice: Choice,
    ratio: tuple[float, float, float],
) -> PlanStep:
    finding = None if number == 0 else FINDINGS[number - 1]
    cpu = reports.cpu(cpu_us * US, 0.96 * cpu_us * US, 1.05 * cpu_us * US)
    if number > 1:
        cpu = msgspec.structs.replace(cpu, source=Source.PREDICTED, num_samples=0)
    results = (
        cpu,
        reports.gpu("T4", t4_us * US, 0.8 * t4_us * US, 1.3 * t4_us * US, Bound.LAUNCH),
        reports.gpu(DEVICE, device_us * US, 0.8 * device_us * US, 1.3 * device_us * US, Bound.SYNC),
    )
    best = DEVICE if choice is not Choice.CPU else reports.CPU_NAME
    return PlanStep(
        code="" if finding is None else finding.code,
        title="the step as it is" if finding is None else finding.title,
        file=None if finding is None else finding.file,
        line=None if finding is None else finding.line,
        side=Side.GPU,
        results=results,
        verdict=Verdict(
            choice=choice,
            device=best,
            over=reports.CPU_NAME if best == DEVICE else DEVICE,
            speedup=ratio[0],
            low=ratio[1],
            high=ratio[2],
            because="The GPU has little to do.",
        ),
    )


def launch_bound() -> ExplainReport:
    """Return a step of small kernels that Python issues one by one, with a sync."""
    plan = (
        _plan_step(0, 1210, 1410, 2100, Choice.CPU, (1.165, 1.02, 1.4)),
        _plan_step(1, 1210, 1070, 1620, Choice.TOO_CLOSE, (1.13, 0.9, 1.4)),
        _plan_step(2, 1118, 780, 1530, Choice.GPU, (1.43, 1.15, 1.8)),
    )
    return ExplainReport(
        schema_version=EXPLAIN_SCHEMA_VERSION,
        target=TARGET,
        host=reports.HOST,
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
        device=DEVICE,
        results=plan[0].results,
        verdict=plan[0].verdict,
        step_ns=1.41 * MS,
        low_ns=1.1 * MS,
        high_ns=1.75 * MS,
        bound=Bound.LAUNCH,
        host_busy_ns=1.31 * MS,
        device_busy_ns=0.26 * MS,
        attribution=launch_bound_attribution(),
        timeline=launch_bound_timeline(),
        findings=FINDINGS,
        plan=plan,
        caveats=(Caveat(code="short-run", message="the step was measured over 43 steps only."),),
    )


def healthy() -> ExplainReport:
    """Return a step of large kernels, without findings or modules."""
    kernels = attribution(
        part("device-convolution", "forward", "", 40, 30_000),
        part("device-convolution", "backward", "", 44, 61_000),
        part("device-normalization", "forward", "", 40, 9_000),
        part(StepCause.LAUNCH, "forward", "", 40, 120),
    )
    result = reports.gpu(DEVICE, 100 * MS, 85 * MS, 120 * MS, Bound.COMPUTE)
    cpu = reports.cpu(2.1e9, 2.0e9, 2.3e9)
    verdict = Verdict(
        choice=Choice.GPU,
        device=DEVICE,
        over=reports.CPU_NAME,
        speedup=21.0,
        low=17.0,
        high=26.0,
        because="Convolutions are 91 % of the step.",
    )
    return msgspec.structs.replace(
        launch_bound(),
        target="train_resnet.py",
        results=(cpu, result),
        verdict=verdict,
        step_ns=100.12 * MS,
        low_ns=85 * MS,
        high_ns=120 * MS,
        bound=Bound.COMPUTE,
        host_busy_ns=22 * MS,
        device_busy_ns=100 * MS,
        attribution=kernels,
        timeline=(
            span("host", "aten.convolution.default", "dispatcher", "forward", 40, 0, 22_000),
            span(
                "device", "aten.convolution.default", "device-convolution", "forward", 40, 60, 1e5
            ),
        ),
        findings=(),
        plan=(
            PlanStep(
                code="",
                title="the step as it is",
                file=None,
                line=None,
                side=Side.GPU,
                results=(cpu, result),
                verdict=verdict,
            ),
        ),
        caveats=(),
    )


def trainer() -> ExplainReport:
    """Return a step that runs below the line that starts a trainer, except for one line."""
    file = "examples/finetune.py"
    entry = "transformers.trainer:Trainer.train"
    step, backward, update, loader, to_device = (
        (entry, *names)
        for names in (
            ("transformers.trainer:Trainer.training_step",),
            (
                "transformers.trainer:Trainer.training_step",
                "accelerate.accelerator:Accelerator.backward",
            ),
            ("accelerate.optimizer:AcceleratedOptimizer.step",),
            ("transformers.trainer:Trainer.get_batch_samples",),
            (
                "transformers.trainer:Trainer.get_batch_samples",
                "accelerate.utils.operations:send_to_device",
            ),
        )
    )
    parts = attribution(
        part(StepCause.DATA_LOADING, "data", "", 46, 180, file, loader),
        part(StepCause.COPY_PINNED, "forward", "", 46, 60, file, to_device),
        part(StepCause.DISPATCHER, "forward", "Bert", 46, 300, file, step),
        part(StepCause.LAUNCH, "forward", "Bert", 46, 90, file, step),
        part(StepCause.AUTOGRAD, "backward", "Bert", 46, 410, file, backward),
        part(StepCause.OPTIMIZER, "optimizer", "", 46, 120, file, update),
        part(StepCause.SYNC, "optimizer", "", 46, 5, file, (entry,)),
        part(StepCause.PYTHON, "data", "", 12, 236, file),
        part(StepCause.OVERLAP, "", "", None, 9),
    )
    report = launch_bound()
    finding = msgspec.structs.replace(
        FINDINGS[0],
        title="the host reads a value from the GPU in every step",
        file=file,
        line=46,
        fix="TrainingArguments(logging_steps=500, logging_nan_inf_filter=False)",
        frames=(entry, "transformers.trainer:Trainer._maybe_log_save_evaluate"),
    )
    return msgspec.structs.replace(
        report, target=file, attribution=parts, findings=(finding,), plan=report.plan[:1]
    )


def with_names(report: ExplainReport, name: str) -> ExplainReport:
    """Return a report with ``name`` in place of every text that a user controls."""
    replace = msgspec.structs.replace
    named_results: dict[str, DeviceResult] = {
        result.device: replace(
            result, device=name if result.kind is DeviceKind.CPU else result.device
        )
        for result in report.results
    }

    def verdict(one: Verdict) -> Verdict:
        return replace(one, because=name)

    def results(many: tuple[DeviceResult, ...]) -> tuple[DeviceResult, ...]:
        return tuple(replace(one, device=named_results[one.device].device) for one in many)

    return replace(
        report,
        target=name,
        host=replace(report.host, name=name, source=name),
        results=results(report.results),
        verdict=verdict(report.verdict),
        attribution=replace(
            report.attribution,
            parts=tuple(
                replace(
                    one,
                    module=f"{name}.{name}" if one.module else "",
                    file=name,
                    frames=tuple(name for _ in one.frames),
                )
                for one in report.attribution.parts
            ),
        ),
        timeline=tuple(replace(one, name=name, module=name, file=name) for one in report.timeline),
        findings=tuple(
            replace(
                one,
                title=name,
                file=name,
                fix=name,
                evidence=name,
                frames=tuple(name for _ in one.frames),
            )
            for one in report.findings
        ),
        plan=tuple(
            replace(
                step,
                title=name,
                file=name,
                results=results(step.results),
                verdict=verdict(step.verdict),
            )
            for step in report.plan
        ),
        caveats=(Caveat(code=name, message=name),),
    )


ALL = {"launch_bound": launch_bound, "healthy": healthy, "trainer": trainer}
