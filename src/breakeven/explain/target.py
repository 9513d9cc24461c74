"""Explain a target: recorded, and measured under other settings of this CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.capture import KEEP_NOTHING, Keep, Launcher, PlainRun
from breakeven.device import HostSpec
from breakeven.errors import Caveat
from breakeven.explain.explanation import chosen_rules, explained
from breakeven.processor import has_bf16_hardware
from breakeven.progress import Progress
from breakeven.session import LONGEST_STEP_NS, Runs, Session, program_facts
from breakeven.timing import CpuFacts, CpuSetting, CpuTrial
from breakeven.trace import Configuration, Op, ScaledTrace, StepTrace
from breakeven.verdict import ExplainReport, NoCrossover

# From this part of subnormal values on it is worth to measure the step without them.
_SUBNORMAL_FRACTION = 0.001


def explain_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "here",
    time_limit_s: float = 300.0,
    rules: Sequence[str] = (),
    tries_cpu: bool = True,
    budget_s: float = 1.0,
    keep: Keep = KEEP_NOTHING,
    progress: Progress | None = None,
    launcher: Launcher | None = None,
) -> ExplainReport:
    """Explain what holds the training step of ``target`` back on a GPU, and on this CPU.

    The target runs in child processes that end by themselves after enough steps; the files that it
    writes until then are thrown away.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs; the step is taken apart on the first. By default a choice of six,
            and the step of the one that the verdict is about.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run, in seconds.
        rules: Codes or causes of the rules whose findings are wanted; all by default.
        tries_cpu: Measure the step under other settings of this CPU too, which takes some
            seconds; without it, findings that need that are not looked for.
        budget_s: Seconds of plain steps that are enough when they are short.
        keep: What of the target's side effects is to be real; by default nothing.
        progress: Progress callback.
        launcher: Makes the processes, where several targets are explained after one another; each
            call has its own by default, which takes some seconds to import torch.

    Raises:
        BreakevenError: The target gave no answer, or a device, host or rule is unknown.
    """
    wanted = chosen_rules(rules)
    session = Session(
        target, arguments=arguments, is_module=is_module, devices=devices, host=host,
        time_limit_s=time_limit_s, budget_s=budget_s, keep=keep, progress=progress,
        launcher=launcher,
    )  # fmt: skip
    with session:
        scaled, unscaled = _other_sizes(session)
        step, cpu = session.step, None
        if tries_cpu:
            cpu = try_cpu_settings(session.runs, step.as_set, step.traced.trace, session.host)
        session.progress.begin("simulating the step with and without each fix")
        report = explained(
            step.compared,
            # Of several by default, the one that the verdict is about.
            session.devices[0] if devices else step.compared.best.device,
            target=session.target.label,
            host=step.host_summary,
            recording=step.recorded(scaled=scaled, cpu=cpu),
            rules=wanted,
            caveats=step.caveats((*session.ready.caveats, *unscaled)),
            program=program_facts(step.as_set, step.plain),
        )
        session.progress.end()
    return session.with_side_effects(report)


def _other_sizes(session: Session) -> tuple[ScaledTrace | None, tuple[Caveat, ...]]:
    """Return the step at other batch sizes, where a DataLoader sets its size, or why not."""
    scaled = session.batch_sizes and session.batch_sizes.record_other_size()
    if not isinstance(scaled, NoCrossover):
        return scaled, ()
    message = f"The step could not be simulated at other batch sizes. {scaled.none_because}"
    return None, (Caveat(code="one-batch-size", message=message),)


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
