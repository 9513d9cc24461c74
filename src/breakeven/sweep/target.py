"""From a script and its knobs to a report: record, predict, measure where it counts, compare."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from breakeven.calibrate import check_host_name, find_hosts
from breakeven.capture import KEEP_NOTHING, Keep, Launcher, find_target
from breakeven.device import select_devices
from breakeven.simulate import Strategy
from breakeven.sweep.axes import assign_roles
from breakeven.sweep.engine import Engine, LocalEngine
from breakeven.sweep.kept_runs import KeptRuns
from breakeven.sweep.progress import SilentSweepProgress, SweepProgress
from breakeven.sweep.script_runs import ScriptRuns
from breakeven.sweep.stages import SweepStages
from breakeven.verdict import SweepAxis, SweepReport


def sweep_target(
    target: str,
    *,
    axes: Sequence[SweepAxis],
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "here",
    time_limit_s: float = 300.0,
    engine: Engine | None = None,
    strategy: Strategy = Strategy.DDP,
    is_fresh: bool = False,
    keep: Keep = KEEP_NOTHING,
    progress: SweepProgress | None = None,
) -> SweepReport:
    """Time the training step of ``target`` along its knobs, on this CPU and on GPUs.

    Each measured run is kept on disk at once: a sweep that was broken off goes on from there, and
    is measured anew only where the script, its settings, the machine or the software changed.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        axes: The knobs, as `parse_axis` returns them; roles are assigned here.
        arguments: ``sys.argv[1:]`` of the script, with ``{NAME}`` where an axis enters.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with; a choice of six by default.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run, in seconds.
        engine: Where steps are measured; on this machine by default.
        strategy: How several GPUs share a step.
        is_fresh: Measure also what was measured before.
        keep: What of the target's side effects is to be real; by default nothing.
        progress: Is told what happens.

    Raises:
        UsageError: The axes do not fit each other or the arguments.
        BreakevenError: The target gives no answer anywhere, or a device or host is unknown.
    """
    progress = progress or SilentSweepProgress()
    axes = assign_roles(axes, arguments)
    specs = select_devices(devices)
    check_host_name(host)
    found = find_target(target, is_module=is_module)
    with Launcher(keep) as launcher:
        progress.begin("starting torch")
        ready = launcher.ready()
        host_spec, here = find_hosts(host, launcher)
        kept = KeptRuns(engine or LocalEngine(launcher, progress), is_fresh=is_fresh)
        runs = ScriptRuns(launcher, found, arguments, axes, time_limit_s, progress)
        stages = SweepStages(axes, runs, kept, specs, host_spec, here, strategy, progress)
        stages.record()
        stages.predict()
        stages.measure(has_gpu=bool(ready.gpu) and engine is None)
        kept.complete()
        progress.end()
    report = stages.report(
        target=found.label, arguments=tuple(arguments), torch_version=ready.torch_version
    )
    return replace(report, writes=launcher.writes, quiet_trackers=launcher.quiet_trackers)
