"""Sweep a script along its knobs: record, time the points that matter, predict the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from breakeven.capture import KEEP_NOTHING, Keep, PlainRun, RunFailure, TracedRun
from breakeven.device import DeviceSpec, HostSpec, select_devices
from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import Progress, SilentProgress
from breakeven.simulate import (
    MultiGpuSetup,
    StepPrediction,
    Strategy,
    build_program,
    model_size,
    phase_times,
    predict_multi_gpu,
    predict_steps,
)
from breakeven.studies.engine import Engine, LocalEngine, RunCache
from breakeven.studies.host_work import as_timed, host_for_prediction
from breakeven.studies.measured_step import at_best_thread_count, measured_result, shown_host
from breakeven.studies.recorded_grid import RecordedGrid
from breakeven.studies.runner import Runner
from breakeven.studies.study import start_study
from breakeven.studies.sweep_axes import (
    Grid,
    Settings,
    Values,
    assign_roles,
    points_of,
    values_at,
)
from breakeven.studies.timed_grid import COARSE_BUDGET_S, TimedGrid, timing_request
from breakeven.timing import Estimate
from breakeven.trace import StepTrace
from breakeven.verdict import (
    SWEEP_SCHEMA_VERSION,
    AxisRole,
    DeviceKind,
    DeviceResult,
    SweepAxis,
    SweepFailure,
    SweepPoint,
    SweepReport,
    device_result,
    find_sweep_crossovers,
)

# Arrays for this many steps of a large network stay within some 100 MB.
_STEPS_AT_ONCE = 200

# Fields that a point copies from a result.
_OF_RESULT = (
    "device", "kind", "source", "step_ns", "low_ns", "high_ns", "bound", "fits", "num_samples",
    "caveats", "num_threads",
)  # fmt: skip

# Predictions by the values of a step's recorded axes and the number of devices that share it.
Predictions = dict[tuple[Values, int], tuple[StepPrediction, ...]]


class SweepProgress(Progress, Protocol):
    """Receives the stages of a sweep, and the finished points of its grid."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Receive newly finished points of the grid.

        Args:
            points: All devices at one or more finished points; empty if the script failed there.
            num_done: Number of finished points, including these.
            num_points: Number of points in the whole grid.
        """
        ...


def sweep_target(
    target: str,
    *,
    axes: Sequence[SweepAxis],
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "auto",
    time_limit_s: float = 300.0,
    engine: Engine | None = None,
    strategy: Strategy = Strategy.DDP,
    is_fresh: bool = False,
    keep: Keep = KEEP_NOTHING,
    progress: SweepProgress | None = None,
) -> SweepReport:
    """Time the training step of ``target`` along its knobs, on this CPU and on GPUs.

    Each measured run is stored at once, so an interrupted sweep resumes there. A run is repeated
    only if the script, its settings, the machine or the software has changed.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        axes: The knobs, as `parse_axis` returns them; roles are assigned here.
        arguments: ``sys.argv[1:]`` of the script, with ``{NAME}`` for the value of an axis.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with; six by default.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        time_limit_s: Limit of each run, in seconds.
        engine: Measures the steps; on this machine by default.
        strategy: How several GPUs share a step.
        is_fresh: Measure again even if a run is stored.
        keep: Side effects of the target that are real; by default none.
        progress: Progress callback.

    Raises:
        UsageError: If the axes do not fit each other or the arguments.
        BreakevenError: If the target gives no answer at any point, or a device or host is unknown.
    """
    progress = progress or SilentProgress()
    grid = Grid(assign_roles(axes, arguments), tuple(arguments))
    with start_study(
        target, is_module=is_module, devices=select_devices(devices), host=host,
        time_limit_s=time_limit_s, keep=keep, progress=progress,
    ) as study:  # fmt: skip
        kept = RunCache(engine or LocalEngine(study.launcher, progress), is_fresh=is_fresh)
        recorded = RecordedGrid(study.runner, grid)
        found = recorded.record()
        grid = recorded.grid
        every_point = points_of(grid.axes)
        refused = {
            values: step for values, step in found.items() if not isinstance(step, StepTrace)
        }
        if len(refused) == len(found):
            raise next(iter(refused.values()))
        traced, plain = _time_base(study.runner, grid, recorded, kept, progress)
        # Points that share all recorded settings share their step.
        distinct = {id(step): step for step in found.values() if isinstance(step, StepTrace)}
        timed = {key: as_timed(step, traced, plain) for key, step in distinct.items()}
        steps = {values: timed[id(step)] for values, step in found.items() if id(step) in timed}
        program = build_program(as_timed(traced.trace, traced, plain))
        feeding = host_for_prediction(program, plain, study.host, study.here)
        progress.begin(f"predicting {len(timed)} steps on {len(study.devices)} GPUs")
        predictions = _predicted_grid(steps, study.devices, feeding, grid, strategy)

        def points_at(settings: Settings) -> tuple[SweepPoint, ...]:
            return _points_at(settings, grid, steps, predictions, on_cpu)

        done: set[int] = set()

        def tell(settings: Settings) -> None:
            """Report all points with these settings, for every number of GPUs."""
            for number, point in enumerate(every_point):
                if number not in done and settings.items() <= point.items():
                    done.add(number)
                    progress.finished(points_at(point), len(done), len(every_point))

        def gpu_times(held: Settings, sizes: Sequence[int]) -> list[dict[int, Estimate]]:
            """Return the times of one GPU of each kind along a curve of the CPU."""
            (name,) = [axis.name for axis in grid.timed_axes if axis.name not in held]
            times: list[dict[int, Estimate]] = [{} for _ in study.devices]
            for size in sizes:
                key = values_at({**held, name: size}, grid.recorded_axes)
                for own, prediction in zip(times, predictions[key, 1], strict=True):
                    if prediction.fits:
                        own[size] = prediction.estimate
            return times

        on_cpu = TimedGrid(
            runner=study.runner, grid=grid, recorded=recorded, kept=kept,
            is_there=lambda settings: values_at(settings, grid.recorded_axes) in steps,
            progress=progress, on_point=tell, has_gpu=bool(study.ready.gpu) and engine is None,
        )  # fmt: skip
        on_cpu.measure(gpu_times)
        tell({})  # report all interpolated points
        progress.end()
    points = tuple(point for settings in every_point for point in points_at(settings))
    failures: list[SweepFailure] = []
    for settings in every_point:
        error = refused.get(values_at(settings, grid.recorded_axes))
        message = error.message if error else on_cpu.failures.get(on_cpu.key(settings))
        if message is not None:
            failures.append(SweepFailure(settings=settings, message=message))
    caveats = (
        *study.target.caveats,
        *traced.trace.caveats,
        *recorded.caveats,
        *on_cpu.caveats(),
        *_own_caveats(grid, feeding, plain),
    )
    return SweepReport(
        schema_version=SWEEP_SCHEMA_VERSION,
        target=study.target.label,
        arguments=grid.arguments,
        host=shown_host(feeding, plain, study.ready.torch_version),
        axes=grid.axes,
        points=points,
        failures=tuple(failures),
        crossovers=find_sweep_crossovers(points, grid.axes),
        caveats=tuple({caveat.message: caveat for caveat in caveats}.values()),
        writes=study.launcher.writes,
    )


def _time_base(
    runner: Runner, grid: Grid, recorded: RecordedGrid, kept: RunCache, progress: Progress
) -> tuple[TracedRun, PlainRun]:
    """Time the script with its own threads and batches.

    Raises:
        BreakevenError: If it cannot be timed at any recorded point; the error is that of the first.
    """
    first_error: BreakevenError | None = None
    for settings, traced in recorded.bases:
        progress.begin("measuring the step on this CPU")
        request = timing_request(runner, grid, None, settings, COARSE_BUDGET_S)
        (done,) = kept.measure([request])
        if not isinstance(done.answer, RunFailure):
            return traced, at_best_thread_count(done.answer)
        first_error = first_error or runner.error(request, done.answer, done.output)
    assert first_error is not None, "there is a step, so one was recorded unchanged"
    raise first_error


def _predicted_grid(
    steps: Mapping[Values, StepTrace],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    grid: Grid,
    strategy: Strategy,
) -> Predictions:
    """Predict each step on each device, in the order of the devices.

    Args:
        steps: Steps by the values of the recorded axes.
        devices: GPUs.
        host: The host that issues the work.
        grid: Has the numbers of GPUs that share a step, each with the whole batch of the step.
        strategy: How several GPUs share it.
    """
    # Points that share all recorded settings share their step.
    distinct = list({id(step): step for step in steps.values()}.items())
    lone: dict[int, tuple[StepPrediction, ...]] = {}
    for first in range(0, len(distinct), _STEPS_AT_ONCE):
        some = distinct[first : first + _STEPS_AT_ONCE]
        flat = iter(predict_steps([step for _, step in some], devices, host))
        lone |= {key: tuple(next(flat) for _ in devices) for key, _ in some}
    found: Predictions = {(values, 1): lone[id(step)] for values, step in steps.items()}
    axis = grid.axis_of(AxisRole.NUM_DEVICES)
    shared = [int(value) for value in axis.values if int(value) > 1] if axis else []
    for values, step in steps.items() if shared else ():
        program, size = build_program(step), model_size(step)
        times = phase_times(program, devices, host)
        for number in shared:
            setup = MultiGpuSetup(strategy=strategy, num_devices=number)
            found[values, number] = tuple(
                predict_multi_gpu(single, own, size, host, setup).step
                for single, own in zip(found[values, 1], times, strict=True)
            )
    return found


def _points_at(
    settings: Settings,
    grid: Grid,
    steps: Mapping[Values, StepTrace],
    predictions: Predictions,
    on_cpu: TimedGrid,
) -> tuple[SweepPoint, ...]:
    """Return all devices at one point, measured ones first."""
    key = values_at(settings, grid.recorded_axes)
    step, axis = steps.get(key), grid.axis_of(AxisRole.NUM_DEVICES)
    if step is None:
        return ()
    number = int(settings[axis.name]) if axis else 1
    # An axis may give the number of samples if the step does not.
    named = settings.get("batch_size")
    batch_size = step.batch_size or (named if isinstance(named, int) else None)

    def point(result: DeviceResult, processor: str = "", num_devices: int = 1) -> SweepPoint:
        return SweepPoint(
            settings=dict(settings),
            batch_size=batch_size and batch_size * num_devices,
            num_parameters=step.num_parameters,
            processor=processor,
            **{name: getattr(result, name) for name in _OF_RESULT},
        )

    points: list[SweepPoint] = []
    if (cpu := on_cpu.cpu_at(settings)) is not None:
        run, result = cpu
        # If threads are no axis, then each point has its best number of threads.
        if grid.axis_of(AxisRole.THREADS) is None:
            points.append(point(replace(result, device=run.processor)))
        else:
            points.append(point(result, run.processor))
    gpu = on_cpu.gpu.get(on_cpu.key(settings))
    if gpu is not None and number == 1:
        points.append(point(measured_result(gpu, DeviceKind.GPU)))
    points += [
        point(device_result(prediction), num_devices=number)
        for prediction in predictions[key, number]
    ]
    return tuple(points)


def _own_caveats(grid: Grid, host: HostSpec, plain: PlainRun) -> list[Caveat]:
    found: list[Caveat] = []
    if grid.axis_of(AxisRole.THREADS) is not None:
        message = (
            "torch's threads are those of the CPU's step: the times of the GPUs do not depend on "
            "them"
        )
        found.append(Caveat(code="threads-of-the-cpu", message=message))
    if host.is_measured and plain.processor != host.name:
        message = (
            f"the CPU's steps were measured on {plain.processor}, while the GPUs are fed by this "
            f"machine's {host.name}"
        )
        found.append(Caveat(code="measured-elsewhere", message=message))
    if grid.axis_of(AxisRole.NUM_DEVICES) is not None:
        message = (
            "each GPU has the script's own batch, so n GPUs do n times the samples of a step: "
            "compare samples per second; the CPU's step is one batch"
        )
        found.append(Caveat(code="batch-per-device", message=message))
    return found
