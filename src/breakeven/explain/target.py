"""From a script to an explanation: run it, record it, take its step apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from breakeven.calibrate import check_host_name, find_hosts
from breakeven.capture import (
    KEEP_NOTHING,
    Keep,
    Launcher,
    PlainRun,
    TracedRun,
    find_target,
)
from breakeven.check import (
    BatchSizes,
    DevicePath,
    Runs,
    compare,
    measure_at_best,
    measured_result,
    program_facts,
    select_devices,
)
from breakeven.errors import Caveat
from breakeven.explain.cpu_trials import try_cpu_settings
from breakeven.explain.explanation import Question, chosen_rules, explain
from breakeven.progress import Progress, SilentProgress
from breakeven.trace import ScaledTrace
from breakeven.verdict import DeviceKind, ExplainReport, NoCrossover


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
        progress: Is told what happens.
        launcher: Makes the processes, where several targets are explained after one another; each
            call has its own by default, which takes some seconds to import torch.

    Raises:
        BreakevenError: The target gave no answer, or a device, host or rule is unknown.
    """
    progress = progress or SilentProgress()
    specs = select_devices(devices)
    check_host_name(host)
    wanted = chosen_rules(rules)
    found = find_target(target, arguments, is_module=is_module)
    with ExitStack() as stack:
        if launcher is None:
            launcher = stack.enter_context(Launcher(keep))
        progress.begin("starting torch")
        ready = launcher.ready()
        host_spec, here = find_hosts(host, launcher)
        runs = Runs(launcher, found, time_limit_s, progress, budget_s=budget_s)
        traced = runs.trace()
        traced, plain, best, on_cpu = measure_at_best(runs, traced)
        measured = list(on_cpu)
        on_gpu = runs.measure_on_gpu() if ready.gpu else None
        if on_gpu is not None:
            measured.append(measured_result(on_gpu, DeviceKind.GPU))
        scaled, unscaled = _record_other_size(runs, traced, best)
        cpu = try_cpu_settings(runs, plain, traced.trace, host_spec) if tries_cpu else None
        progress.begin("simulating the step with and without each fix")
        comparison = compare(traced, best, specs, host_spec, measured, here)
        report = explain(
            Question(
                target=found.label,
                recording=comparison.recording(scaled=scaled, cpu=cpu),
                host=comparison.host_summary(ready.torch_version),
                measured=tuple(measured),
                devices=specs,
                # Of several by default, the one that the verdict is about.
                explained=None if devices else comparison.best.device,
                rules=wanted,
                caveats=comparison.caveats((*ready.caveats, *unscaled)),
                program=program_facts(plain, best),
            )
        )
        progress.end()
    return replace(report, writes=launcher.writes, quiet_trackers=launcher.quiet_trackers)


def _record_other_size(
    runs: Runs, traced: TracedRun, plain: PlainRun
) -> tuple[ScaledTrace | None, tuple[Caveat, ...]]:
    """Return the step at other batch sizes, where a DataLoader sets its size, or why not."""
    if traced.loader is None:
        return None, ()
    sizes = BatchSizes(runs, traced, plain, DevicePath(traced, plain), traced.loader)
    scaled = sizes.record_other_size()
    if isinstance(scaled, NoCrossover):
        message = f"The step could not be simulated at other batch sizes. {scaled.none_because}"
        return None, (Caveat(code="one-batch-size", message=message),)
    return scaled, ()
