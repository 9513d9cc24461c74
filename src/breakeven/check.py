"""From a training script, or a function that does one step, to a verdict.

The step is run, recorded, predicted elsewhere and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from breakeven.advise import disturbed_findings
from breakeven.calibrate import host_called, in_measured_machines
from breakeven.capture import KEEP_NOTHING, Keep
from breakeven.device import split_devices
from breakeven.errors import Caveat, UsageError
from breakeven.progress import Progress
from breakeven.session import (
    AXIS,
    UNKNOWN_LENGTH,
    HandFedSizes,
    LiveStep,
    Session,
    TrainingLength,
    absent_cpu_results,
    check_absent_cpus,
    is_worth_repeating,
    less_disturbed,
    measured_result,
)
from breakeven.simulate import CompileMode
from breakeven.trace import ScaledTrace
from breakeven.verdict import (
    SCHEMA_VERSION,
    CheckReport,
    Crossover,
    Curve,
    DeviceKind,
    DeviceResult,
    GeneratedRun,
    NoCrossover,
    generated_step,
)

_ONE_SIZE = NoCrossover(
    none_because="A function has the batch size that it was written with. To find out, call "
    "check_step with functions of several sizes.",
    axis=AXIS,
)


def check_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "auto",
    measured: Sequence[str] = (),
    time_limit_s: float = 300.0,
    length: TrainingLength = UNKNOWN_LENGTH,
    keep: Keep = KEEP_NOTHING,
    tries_generated: bool = True,
    compile_mode: CompileMode | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check whether a GPU pays off for the training step of ``target``.

    The target runs in child processes that end by themselves after enough steps; the files that it
    writes until then are thrown away.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with, a choice of six by default; and of CPUs that are
            not here, whose steps are predicted beside.
        host: What feeds the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        measured: Speeds of the step on GPUs elsewhere: ``T4: 340 it/s``, ``colab T4: 45 s/epoch``.
        time_limit_s: Limit of each run, in seconds.
        length: Of the training, whose time on each device is reported where it is known.
        keep: What of the target's side effects is to be real; by default nothing.
        tries_generated: Also time a short step with forward, backward and update as generated code,
            as `breakeven.fast_step` does it.
        compile_mode: Also predict the step as ``torch.compile`` would make it in this mode. That
            of a script which compiles its model is predicted in any case.
        progress: Progress callback.

    Raises:
        BreakevenError: The target gave no answer, or a device or host is unknown.
    """
    gpus, cpus = split_devices(devices)
    check_absent_cpus(cpus)
    session = Session(
        target, arguments=arguments, is_module=is_module, devices=[gpu.id for gpu in gpus],
        host=host, measured=measured, time_limit_s=time_limit_s, keep=keep,
        tries_generated=tries_generated, progress=progress,
    )  # fmt: skip
    with session:
        step = session.measure()
        sizes = session.batch_sizes(step)
        searched = sizes or HandFedSizes(step.path.step, step.plain.measurement.estimate)
        crossover, curves = searched.search(step.compared)
        run = step.as_set.generated
        generated_crossover = None
        if sizes is not None and run is not None:
            generated_crossover = sizes.search_generated(step.compared, run)
        absent, unpredicted = (), ()
        if cpus:
            absent, unpredicted = absent_cpu_results(step, cpus, session.measure_cpu_rates())
        session.progress.end()
    report = _report(
        step,
        target=session.target.label,
        crossover=crossover,
        curves=curves,
        caveats=(*session.ready.caveats, *searched.caveats, *_not_generated(run), *unpredicted),
        generated=run,
        generated_crossover=generated_crossover,
        absent_cpus=absent,
        compile_mode=compile_mode,
        scaled=searched.scaled,
        length=length,
    )
    return session.with_side_effects(report)


def _not_generated(run: GeneratedRun | None) -> tuple[Caveat, ...]:
    if run is None or not run.because:
        return ()
    message = f"the step was not timed as generated code: {run.because}"
    return (Caveat(code="not-generated", message=message),)


def check_step(
    step: Callable[[], object],
    *,
    devices: Sequence[str] = (),
    host: str = "auto",
    budget_s: float = 1.0,
) -> CheckReport:
    """Check whether a GPU pays off for ``step``, a function that does one training step.

    The function is called some tens to thousands of times, plainly and then recorded on a
    pretended GPU; model and optimizer are trained by it as by any other call.

    Args:
        step: Takes no arguments; forward, backward and update of tensors on the CPU.
        devices: Names of GPUs to compare with, a choice of six by default; and of CPUs that are
            not here, whose steps are predicted beside.
        host: What feeds the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        budget_s: Seconds of plain steps that are enough when they are short.

    Raises:
        BreakevenError: A device or host is unknown.
        UsageError: ``step`` is no function.
    """
    # The check of a target leaves torch to its child processes.
    import torch

    from breakeven.capture import time_step, trace_step
    from breakeven.measure import measure_cpu_rates, measure_host

    if not callable(step):
        raise UsageError(
            f"step is a {type(step).__name__}, not a function",
            hint="pass the function itself, without calling it: check_step(step)",
        )
    specs, cpus = split_devices(devices)
    check_absent_cpus(cpus)
    here = measure_host().host
    host_spec = in_measured_machines(host_called(host, here))
    plain = time_step(step, budget_s=budget_s)
    if is_worth_repeating(plain):
        plain = less_disturbed(plain, time_step(step, budget_s=budget_s))
    live = LiveStep(
        traced=trace_step(step),
        plain=plain,
        as_set=plain,
        devices=specs,
        host=host_spec,
        here=here,
        measured=(measured_result(plain, DeviceKind.CPU),),
        torch_version=str(torch.__version__),
    )
    name = str(getattr(step, "__qualname__", type(step).__name__))
    absent, unpredicted = (), ()
    if cpus:
        absent, unpredicted = absent_cpu_results(live, cpus, measure_cpu_rates())
    return _report(live, target=name, crossover=_ONE_SIZE, caveats=unpredicted, absent_cpus=absent)


def _report(
    step: LiveStep,
    *,
    target: str,
    crossover: Crossover | NoCrossover,
    curves: tuple[Curve, ...] = (),
    caveats: Sequence[Caveat] = (),
    generated: GeneratedRun | None = None,
    generated_crossover: Crossover | NoCrossover | None = None,
    absent_cpus: tuple[DeviceResult, ...] = (),
    compile_mode: CompileMode | None = None,
    scaled: ScaledTrace | None = None,
    length: TrainingLength = UNKNOWN_LENGTH,
) -> CheckReport:
    """Return the report of a step.

    Args:
        step: The step.
        target: As the user wrote it.
        crossover: From which batch size on a GPU wins.
        curves: Along the batch size.
        caveats: Of the machine, and of the search for the crossover.
        generated: What was measured of generated code for the step.
        generated_crossover: From which batch size on a GPU wins against that.
        absent_cpus: The step on CPUs that are not here.
        compile_mode: Mode of ``torch.compile`` to predict the step in, where that is asked for.
        scaled: The step at other batch sizes, where it was recorded at two.
        length: Of the training.
    """
    compared = step.compared
    found = compared.diagnosed_on(compared.best.device, scaled=scaled)
    edits = {one.finding.code: one.match.edit for one in found}
    disturbed = disturbed_findings(compared.trace.facts, None) if found else ()
    more = (*caveats, *length.caveats(step.as_set.loader), *disturbed)
    return CheckReport(
        schema_version=SCHEMA_VERSION,
        target=target,
        host=step.host_summary,
        step=compared.summary_on(compared.best.device),
        results=compared.results,
        verdict=compared.verdict,
        crossover=crossover,
        findings=tuple(one.finding for one in found),
        caveats=step.caveats(more),
        curves=curves,
        generated=generated and generated_step(generated, compared.results[0].step_ns),
        generated_crossover=generated_crossover,
        absent_cpus=absent_cpus,
        compiled=compared.compiled(compile_mode),
        captured=compared.captured(edits.get("OPT002"), compile_mode),
        recording=step.recorded(scaled=scaled),
        program=step.program(length, absent_cpus),
    )
