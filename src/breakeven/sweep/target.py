"""From a script and its knobs to a report: record, predict, measure where it counts, compare."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.capture import KEEP_NOTHING, Keep
from breakeven.progress import SilentProgress
from breakeven.session import Session
from breakeven.simulate import Strategy
from breakeven.sweep.axes import assign_roles
from breakeven.sweep.engine import Engine, LocalEngine
from breakeven.sweep.grid import SweepProgress
from breakeven.sweep.run_cache import RunCache
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
        progress: Progress callback.

    Raises:
        UsageError: The axes do not fit each other or the arguments.
        BreakevenError: The target gives no answer anywhere, or a device or host is unknown.
    """
    progress = progress or SilentProgress()
    axes = assign_roles(axes, arguments)
    session = Session(
        target, is_module=is_module, devices=devices, host=host, time_limit_s=time_limit_s,
        keep=keep, progress=progress,
    )  # fmt: skip
    with session:
        kept = RunCache(engine or LocalEngine(session.launcher, progress), is_fresh=is_fresh)
        stages = SweepStages(session, axes, arguments, kept, strategy, progress)
        stages.record()
        stages.predict()
        stages.measure(has_gpu=bool(session.ready.gpu) and engine is None)
        kept.complete()
        progress.end()
    return session.with_side_effects(stages.report())
