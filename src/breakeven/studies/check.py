"""Check a training script, or a function that does one step: from target to verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from breakeven.advise import RuleInput, diagnose, kept_findings
from breakeven.calibrate import (
    check_host_name,
    find_host,
    host_called,
    in_measured_machines,
)
from breakeven.device import HERE, HostSpec, split_devices
from breakeven.errors import Caveat, UsageError
from breakeven.memory import physical_bytes
from breakeven.report import SCHEMA_VERSION, CheckReport, record
from breakeven.simulate import CompileMode, CpuCosts
from breakeven.source import Sources
from breakeven.studies.batch_sizes import (
    SizeSearch,
    search_loader_sizes,
    search_scaled_sizes,
)
from breakeven.studies.comparison import (
    Comparison,
    check_absent_cpus,
    compare_devices,
    predict_absent_cpus,
    predict_captured,
    predict_compiled,
    step_summary,
)
from breakeven.studies.host_work import host_for_prediction
from breakeven.studies.measured_step import (
    UNKNOWN_LENGTH,
    MeasuredStep,
    TrainingLength,
    measure_target,
    measured_result,
    measured_step,
    program_facts,
    shown_host,
    step_caveats,
)
from breakeven.studies.study import StudyOptions, host_as_told, start_study
from breakeven.verdict import (
    DeviceKind,
    DeviceResult,
    ProgramFacts,
    generated_step,
    program_of,
)

if TYPE_CHECKING:
    from breakeven.capture import PlainRun, TracedRun, TrainingLoop


def check_target(
    target: str,
    *,
    devices: Sequence[str] = (),
    length: TrainingLength = UNKNOWN_LENGTH,
    tries_generated: bool = True,
    compile_mode: CompileMode | None = None,
    knows_other_cpus: bool = False,
    **options: Unpack[StudyOptions],
) -> CheckReport:
    """Check whether a GPU pays off for the training step of ``target``.

    The target runs in child processes, each of which ends after enough steps. The files that it
    writes there are discarded.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        devices: Names of GPUs to compare with, six by default, and of absent CPUs to predict.
        length: Length of the training; if known, the report has the time on each device.
        tries_generated: Also time a short step with forward, backward and update as generated code,
            as `breakeven.fast_step` does it.
        compile_mode: Also predict the step as ``torch.compile`` would make it in this mode. If the
            script compiles its model, then its own mode is always predicted.
        knows_other_cpus: Also measure this CPU's rates, so that the recorded step can later be
            predicted for other CPUs.
        **options: Of the runs; see `StudyOptions`.

    Raises:
        BreakevenError: If the target gives no answer, or a device or host is unknown.
    """
    gpus, cpus = split_devices(devices)
    check_absent_cpus(cpus)
    with start_study(target, devices=gpus, **options) as study:
        step = measure_target(
            study.runner, has_gpu=bool(study.ready.gpu), tries_generated=tries_generated
        )
        feeding, told = host_as_told(study, step)
        seen = host_for_prediction(step.program, step.plain, feeding, study.here)
        compared = compare_devices(step.program, study.devices, seen, step.results)
        loader = step.traced.loader
        sizes = (
            search_scaled_sizes(step, compared)
            if loader is None
            else search_loader_sizes(study.runner, step, compared, loader)
        )
        absent, unpredicted, costs = (), (), None
        if cpus or knows_other_cpus:
            study.progress.begin("measuring what a core of this CPU can do")
            costs = CpuCosts(host=study.here, core=study.launcher.measure_cpu_rates())
        if cpus and costs:
            absent, unpredicted = predict_absent_cpus(step.program, step.results[0], costs, cpus)
        study.progress.end()
        facts = program_facts(step, study.devices, feeding, study.here)
    report = _report(
        step, compared, sizes, facts, target=study.target.label, here=study.here,
        torch_version=study.ready.torch_version, told=told,
        caveats=(*study.caveats, *sizes.caveats, *_not_generated(step), *unpredicted),
        absent_cpus=absent, costs=costs, compile_mode=compile_mode, length=length,
    )  # fmt: skip
    return replace(report, writes=study.launcher.writes)


def check_step(
    step: Callable[[], object] | TrainingLoop,
    *,
    devices: Sequence[str] = (),
    host: str = "auto",
    budget_s: float = 1.0,
    knows_other_cpus: bool = False,
) -> CheckReport:
    """Check whether a GPU pays off for a training step, in this process.

    A function is called some tens to thousands of times, first plainly and then recorded on a fake
    GPU. Then the modules and optimizers that it uses, and the random numbers, are as before. Other
    effects of the calls remain, such as a learning rate scheduler's count.

    Args:
        step: A function without arguments that runs forward, backward and update of tensors on the
            CPU; or a loop of such steps.
        devices: Names of GPUs to compare with, six by default, and of absent CPUs to predict.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        budget_s: Seconds of plain steps that suffice if steps are short.
        knows_other_cpus: As for `check_target`.

    Raises:
        BreakevenError: If a device or host is unknown.
        UsageError: If ``step`` is no function, or needs arguments.
    """
    # `check_target` needs torch only in its child processes.
    from breakeven.capture import TrainingLoop, kept_training, step_name, time_step, trace_step

    if not isinstance(step, TrainingLoop):
        _ensure_step(step)
    check_absent_cpus(split_devices(devices)[1])
    check_host_name(host)
    with kept_training(None if isinstance(step, TrainingLoop) else step):
        plain = time_step(step, budget_s=budget_s)
        return check_runs(
            plain, trace_step(step), target=step_name(step), devices=devices, host=host,
            knows_other_cpus=knows_other_cpus,
        )  # fmt: skip


def check_runs(
    plain: PlainRun,
    traced: TracedRun,
    *,
    target: str,
    devices: Sequence[str] = (),
    host: str = "auto",
    knows_other_cpus: bool = False,
) -> CheckReport:
    """Check whether a GPU pays off for a step that was timed and recorded in this process.

    Args:
        plain: Steps on this CPU.
        traced: The step as recorded.
        target: Name of the step.
        devices: As for `check_step`.
        host: As for `check_step`.
        knows_other_cpus: As for `check_target`.
    """
    import torch

    from breakeven.capture import Launcher

    specs, cpus = split_devices(devices)
    costs = None
    # torch.set_num_threads, which these measurements need, would slow this process down for good:
    # MKL then no longer runs small operators on one thread.
    with Launcher() as launcher:
        here = find_host(HERE, launcher)
        if cpus or knows_other_cpus:
            costs = CpuCosts(host=here, core=launcher.measure_cpu_rates())
    results = (measured_result(plain, DeviceKind.CPU),)
    timed = measured_step(traced, plain, plain, results)
    feeding = in_measured_machines(host_called(host, here), program=timed.program)
    seen = host_for_prediction(timed.program, plain, feeding, here)
    compared = compare_devices(timed.program, specs, seen, results)
    absent, unpredicted = (), ()
    if cpus and costs:
        absent, unpredicted = predict_absent_cpus(timed.program, results[0], costs, cpus)
    sizes = search_scaled_sizes(timed, compared)
    return _report(
        timed, compared, sizes, program_facts(timed, specs, feeding, here),
        target=target, here=here, torch_version=str(torch.__version__),
        caveats=(*sizes.caveats, *unpredicted), absent_cpus=absent, costs=costs,
    )  # fmt: skip


def _ensure_step(step: object) -> None:
    if not callable(step):
        raise UsageError(
            f"step is a {type(step).__name__}, not a function",
            hint="pass the function itself, without calling it",
        )
    try:
        inspect.signature(getattr(step, "forward", step)).bind()  # a module's call takes anything
    except TypeError as error:
        raise UsageError(
            f"the step needs arguments ({error})",
            hint="pass functools.partial(step, ...), which needs none",
        ) from error
    except ValueError:  # compiled code need not have a signature
        pass


def _not_generated(step: MeasuredStep) -> tuple[Caveat, ...]:
    run = step.as_set.generated
    if run is None or not run.because:
        return ()
    message = f"the step was not timed as generated code: {run.because}"
    return (Caveat(code="not-generated", message=message),)


def _report(
    step: MeasuredStep,
    compared: Comparison,
    sizes: SizeSearch,
    facts: ProgramFacts,
    *,
    target: str,
    here: HostSpec,
    torch_version: str,
    told: Sequence[Caveat] = (),
    caveats: Sequence[Caveat] = (),
    absent_cpus: tuple[DeviceResult, ...] = (),
    costs: CpuCosts | None = None,
    compile_mode: CompileMode | None = None,
    length: TrainingLength = UNKNOWN_LENGTH,
) -> CheckReport:
    """Find what slows the step down, and return the report.

    Args:
        step: The measured step.
        compared: The step on every device.
        sizes: The batch size from which a GPU wins.
        facts: The script's time outside of its steps.
        target: The target as the user wrote it.
        here: This machine, with its costs.
        torch_version: Version of torch that ran the step.
        told: Caveats on speeds measured elsewhere.
        caveats: Caveats on the machine, and on the search for the crossover.
        absent_cpus: The step on absent CPUs.
        costs: This CPU's costs, to predict others.
        compile_mode: Mode of ``torch.compile`` to predict the step in; None for none requested.
        length: Length of the training.
    """
    best, scaled, sources = compared.best.device, sizes.scaled, tuple(step.traced.sources)
    case = RuleInput.of(
        compared.program, best, compared.host, sources=Sources.of(sources), scaled=scaled,
        prediction=compared.best,
    )  # fmt: skip
    diagnosed = diagnose(case)
    edits = {one.finding.code: one.match.edit for one in diagnosed}
    found, of_findings = kept_findings(diagnosed, case)
    generated, per_epoch = step.as_set.generated, facts.steps_per_epoch
    return CheckReport(
        schema_version=SCHEMA_VERSION,
        target=target,
        host=shown_host(compared.host, step.plain, torch_version),
        step=step_summary(compared, best),
        results=compared.results,
        verdict=compared.verdict,
        crossover=sizes.crossover,
        findings=tuple(one.finding for one in found),
        caveats=step_caveats(
            step,
            facts,
            compared.host,
            here,
            told,
            (*caveats, *length.caveats(per_epoch), *of_findings),
        ),
        curves=sizes.curves,
        generated=generated and generated_step(generated, compared.results[0].step_ns),
        generated_crossover=sizes.generated_crossover,
        absent_cpus=absent_cpus,
        compiled=predict_compiled(compared, compile_mode),
        captured=predict_captured(compared, edits.get("OPT002"), compile_mode),
        recording=record(
            compared.trace,
            compared.host,
            other_size=scaled.second if scaled else None,
            sources=sources,
            here=costs,
            memory_bytes=physical_bytes(),
        ),
        program=program_of(
            compared.verdict,
            (*compared.results, *absent_cpus),
            facts,
            length.steps(per_epoch),
        ),
    )
