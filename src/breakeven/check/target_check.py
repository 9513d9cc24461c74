"""From a target to a report: run it, record it, predict it elsewhere, compare."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from breakeven.calibrate import check_host_name, find_hosts
from breakeven.capture import KEEP_NOTHING, Keep, Launcher, find_target
from breakeven.check.at_best import measure_at_best
from breakeven.check.batch_sizes import BatchSizes, no_loader
from breakeven.check.comparison import (
    Comparison,
    compare,
    measured_result,
    select_devices,
)
from breakeven.check.program import UNKNOWN_LENGTH, TrainingLength
from breakeven.check.runs import Runs
from breakeven.device import DeviceSpec
from breakeven.errors import Caveat
from breakeven.progress import Progress, SilentProgress
from breakeven.trace import ScaledTrace
from breakeven.verdict import CheckReport, Crossover, Curve, DeviceKind, NoCrossover


def check_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "here",
    time_limit_s: float = 300.0,
    length: TrainingLength = UNKNOWN_LENGTH,
    keep: Keep = KEEP_NOTHING,
    progress: Progress | None = None,
) -> CheckReport:
    """Check whether a GPU pays off for the training step of ``target``.

    The target runs in child processes that end by themselves after enough steps; the files that it
    writes until then are thrown away.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with; a choice of six by default.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run, in seconds.
        length: Of the training, whose time on each device is told where it is known.
        keep: What of the target's side effects is to be real; by default nothing.
        progress: Is told what happens.

    Raises:
        BreakevenError: The target gave no answer, or a device or host is unknown.
    """
    progress = progress or SilentProgress()
    specs = select_devices(devices)
    check_host_name(host)
    found = find_target(target, arguments, is_module=is_module)
    with Launcher(keep) as launcher:
        progress.begin("starting torch")
        ready = launcher.ready()
        host_spec, here = find_hosts(host, launcher)
        runs = Runs(launcher, found, time_limit_s, progress)
        traced = runs.trace()
        traced, as_set, plain, on_cpu = measure_at_best(runs, traced)
        measured = list(on_cpu)
        on_gpu = runs.measure_on_gpu() if ready.gpu else None
        if on_gpu is not None:
            measured.append(measured_result(on_gpu, DeviceKind.GPU))
        comparison = compare(traced, plain, specs, host_spec, measured, here, as_set)
        crossover, curves, caveats, scaled = _search_crossover(runs, comparison, specs)
        progress.end()
    report = comparison.report(
        target=found.label,
        crossover=crossover,
        curves=curves,
        caveats=(*ready.caveats, *caveats),
        torch_version=ready.torch_version,
        scaled=scaled,
        length=length,
    )
    return replace(report, writes=launcher.writes, quiet_trackers=launcher.quiet_trackers)


def _search_crossover(
    runs: Runs, comparison: Comparison, devices: Sequence[DeviceSpec]
) -> tuple[Crossover | NoCrossover, tuple[Curve, ...], tuple[Caveat, ...], ScaledTrace | None]:
    loader = comparison.traced.loader
    if loader is None:
        return no_loader(), (), (), None
    sizes = BatchSizes(runs, comparison.traced, comparison.plain, comparison.path, loader)
    cpu_name = comparison.results[0].device
    answer = sizes.search(cpu_name, devices, comparison.best.device, comparison.host)
    return *answer, tuple(sizes.caveats), sizes.scaled
