"""Explain what limits a step: of a script, also under other CPU settings, or of a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from breakeven.capture import PlainRun
from breakeven.device import HostSpec, find_device, select_devices
from breakeven.errors import Caveat
from breakeven.memory import physical_bytes
from breakeven.processor import has_half_hardware
from breakeven.report import ExplainReport, record
from breakeven.studies.batch_sizes import LONGEST_STEP_NS, record_second_size
from breakeven.studies.comparison import compare_devices
from breakeven.studies.explanation import chosen_rules, explained
from breakeven.studies.host_work import host_for_prediction
from breakeven.studies.measured_step import measure_target, program_facts, shown_host, step_caveats
from breakeven.studies.runner import Runner
from breakeven.studies.study import (
    StoredRun,
    StudyOptions,
    host_as_told,
    read_recorded,
    start_study,
)
from breakeven.timing import CpuFacts, CpuSetting, CpuTrial, Source
from breakeven.trace import (
    Configuration,
    StepTrace,
)
from breakeven.verdict import DeviceKind, NoCrossover, facts_of

# Above this fraction of subnormal values, also measure the step without them.
_SUBNORMAL_FRACTION = 0.001
_NO_CPU_TRIALS = Caveat(
    code="no-cpu-trials",
    message="a stored run has no measurements under other CPU settings, as `explain` of a script "
    "makes; findings that need these are missing",
)
_NO_SOURCE = Caveat(
    code="no-source",
    message="the stored run holds no source of the script: its lines, and findings that need the "
    "source, are missing",
)
# Caveats of a stored report to drop, since each explanation decides on them again.
_OWN_CAVEATS = frozenset(
    {"timeline-cut", "disturbed-findings", "ignore-comment", _NO_CPU_TRIALS.code, _NO_SOURCE.code}
)


def explain_target(
    target: str,
    *,
    devices: Sequence[str] = (),
    rules: Sequence[str] = (),
    tries_cpu: bool = True,
    budget_s: float = 1.0,
    **options: Unpack[StudyOptions],
) -> ExplainReport:
    """Explain what limits the training step of ``target`` on a GPU, and on this CPU.

    The target runs in child processes, each of which ends after enough steps. The files that it
    writes there are discarded.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        devices: Names of GPUs; the explanation is for the first. By default six, with the
            explanation for the GPU of the verdict.
        rules: Codes or causes of the rules whose findings to report; all by default.
        tries_cpu: Also measure the step under other settings of this CPU, which takes some
            seconds. Without it, findings that need such measurements are left out.
        budget_s: Seconds of plain steps that suffice if steps are short.
        **options: Of the runs; see `StudyOptions`.

    Raises:
        BreakevenError: If the target gives no answer, or a device, host or rule is unknown.
    """
    wanted = chosen_rules(rules)
    with start_study(
        target, devices=select_devices(devices), budget_s=budget_s, **options
    ) as study:
        step = measure_target(study.runner, has_gpu=bool(study.ready.gpu))
        feeding, told = host_as_told(study, step)
        loader = step.traced.loader
        scaled = record_second_size(study.runner, step, loader) if loader else None
        cpu = None
        if tries_cpu:
            cpu = try_cpu_settings(study.runner, step.as_set, step.traced.trace, study.here)
        study.progress.begin("simulating the step with and without each fix")
        seen = host_for_prediction(step.program, step.plain, feeding, study.here)
        compared = compare_devices(step.program, study.devices, seen, step.results)
        facts = program_facts(step, study.devices, feeding, study.here)
        unscaled: tuple[Caveat, ...] = ()
        if isinstance(scaled, NoCrossover):
            message = f"The step could not be simulated at other batch sizes. {scaled.none_because}"
            unscaled, scaled = (Caveat(code="one-batch-size", message=message),), None
        report = explained(
            compared,
            # By default, explain the GPU that the verdict is about.
            study.devices[0] if devices else compared.best.device,
            target=study.target.label,
            host=shown_host(seen, step.plain, study.ready.torch_version),
            recording=record(
                compared.trace,
                seen,
                other_size=scaled.second if scaled else None,
                sources=tuple(step.traced.sources),
                cpu=cpu,
                memory_bytes=physical_bytes(),
            ),
            rules=wanted,
            caveats=step_caveats(step, facts, seen, study.here, told, (*study.caveats, *unscaled)),
            program=facts,
            writes=study.launcher.writes,
        )
        study.progress.end()
    return report


def try_cpu_settings(
    runner: Runner, plain: PlainRun, trace: StepTrace, host: HostSpec
) -> CpuFacts | None:
    """Measure the step under other settings of the CPU; None if it is too slow to try.

    Args:
        runner: Runs the script.
        plain: The unchanged step.
        trace: The recorded step.
        host: The machine of the runs; if its costs were not measured, dispatch time is left out.
    """
    if plain.measurement.median_ns > LONGEST_STEP_NS:
        return None
    # Other numbers of threads: one, half of the processors, all of them.
    num_cores = trace.facts.num_cores
    numbers = sorted({1, max(1, num_cores // 2), num_cores} - {plain.num_threads})
    settings = {f"{CpuSetting.THREADS}={n}": Configuration(num_threads=n) for n in numbers}
    if trace.facts.subnormal_fraction > _SUBNORMAL_FRACTION:
        settings[CpuSetting.FLUSH_DENORMAL] = Configuration(flushes_denormals=True)
    trials: list[CpuTrial] = []
    loads = [plain.load_fraction]
    for setting, configuration in settings.items():
        run = runner.time_under(configuration)
        if run is not None and configuration.num_threads in (0, run.num_threads):
            loads.append(run.load_fraction)
            trials.append(CpuTrial(setting=setting, estimate=run.measurement.estimate))
    return CpuFacts(
        name=plain.processor,
        estimate=plain.measurement.estimate,
        num_threads=plain.num_threads,
        num_cores=num_cores,
        trials=tuple(trials),
        has_bf16=has_half_hardware("bf16"),
        dispatch_ns=host.op_ns + host.python_ns + host.autograd_ns if host.is_measured else 0.0,
        load_fraction=max(loads),
    )


def explain_run(
    run: StoredRun, *, devices: Sequence[str] = (), rules: Sequence[str] = ()
) -> ExplainReport:
    """Explain a run that ``breakeven check`` or ``explain`` wrote with ``-o``.

    Nothing is run or measured again: the host is that of the stored run.

    Args:
        run: The file, or the report itself.
        devices: Names of GPUs; the explanation is for the first. By default those of the stored
            run, with the explanation for the GPU of its verdict.
        rules: Codes or causes of the rules whose findings to report; all by default.

    Raises:
        BreakevenError: If a device or rule is unknown.
        StoredDataError: If the file cannot be read, is cut off, has another version, was changed by
            hand, or holds no recorded step.
    """
    wanted = chosen_rules(rules)
    report, recording, program = read_recorded(run, "explain")
    predicted = (
        result
        for result in report.results
        if result.kind is DeviceKind.GPU and result.source is Source.PREDICTED
    )
    specs = select_devices(devices or [result.device for result in predicted])
    device = specs[0]
    if not devices and isinstance(report, ExplainReport):
        device = find_device(report.device)
    elif not devices:
        device = next((spec for spec in specs if spec.name in report.verdict.pair), device)
    measured = tuple(result for result in report.results if result.source is Source.MEASURED)
    missing = [] if recording.cpu is not None else [_NO_CPU_TRIALS]
    missing += [] if recording.sources else [_NO_SOURCE]
    return explained(
        compare_devices(program, specs, recording.host, measured),
        device,
        target=report.target,
        host=report.host,
        recording=recording,
        rules=wanted,
        caveats=(*(c for c in report.caveats if c.code not in _OWN_CAVEATS), *missing),
        program=facts_of(report.program) if report.program else None,
        num_steps=report.program.num_steps if report.program else None,
    )
