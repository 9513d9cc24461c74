"""From a script and its knobs to a report: record, predict, measure where it counts, compare."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from breakeven.capture import KEEP_NOTHING, Keep, PlainRun, RunFailure, TracedRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import SilentProgress
from breakeven.session import DevicePath, Session, at_best_thread_count, measured_result
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
from breakeven.sweep.axes import assign_roles
from breakeven.sweep.engine import Engine, LocalEngine, RunCache
from breakeven.sweep.grid import (
    GridRuns,
    PointSettings,
    SweepProgress,
    Values,
    axis_of,
    grid_of,
    measured_axes,
    point_at,
    traced_axes,
    values_at,
)
from breakeven.sweep.measured_grid import COARSE_BUDGET_S, MeasuredGrid
from breakeven.sweep.traced_grid import Base, TracedGrid
from breakeven.timing import Estimate
from breakeven.trace import StepTrace
from breakeven.verdict import (
    SWEEP_SCHEMA_VERSION,
    AxisRole,
    DeviceKind,
    SweepAxis,
    SweepFailure,
    SweepPoint,
    SweepReport,
    device_result,
    find_sweep_crossovers,
    host_summary,
)

# Arrays of as many steps of a large network stay within some 100 MB.
_STEPS_AT_ONCE = 200

# What is predicted: a step by the values of its traced axes, and how many devices share it.
Predictions = dict[tuple[Values, int], tuple[StepPrediction, ...]]


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

    Each measured run is kept on disk at once: a sweep that was broken off goes on from there, and
    is measured anew only where the script, its settings, the machine or the software changed.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        axes: The knobs, as `parse_axis` returns them; roles are assigned here.
        arguments: ``sys.argv[1:]`` of the script, with ``{NAME}`` where an axis enters.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with; a choice of six by default.
        host: What feeds the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
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


class SweepStages:
    """One sweep: `record`, `predict` and `measure`, in this order, then `report`.

    Args:
        session: Of the target.
        axes: With their roles.
        arguments: Of the script, with ``{NAME}`` where an axis enters.
        kept: Makes and keeps the measured runs.
        strategy: How several GPUs share a step.
        progress: Progress callback.
    """

    def __init__(
        self, session: Session, axes: Sequence[SweepAxis], arguments: Sequence[str],
        kept: RunCache, strategy: Strategy, progress: SweepProgress,
    ) -> None:  # fmt: skip
        self._session = session
        self._axes = tuple(axes)
        self._arguments = tuple(arguments)
        self._traced_axes = traced_axes(axes)
        self._num_devices_axis = axis_of(axes, AxisRole.NUM_DEVICES)
        self._grid = grid_of(axes)
        self._runs = GridRuns(
            session.launcher, session.target, arguments, axes, session.time_limit_s, progress
        )
        self._kept = kept
        self._devices = session.devices
        self._host = session.host
        self._strategy = strategy
        self._progress = progress
        self._traced = TracedGrid(self._runs, axes)
        self._steps: dict[Values, StepTrace] = {}
        self._refused: dict[Values, BreakevenError] = {}
        self._predictions: Predictions = {}
        # By position in the grid, as soon as they are known.
        self._points: dict[int, tuple[SweepPoint, ...]] = {}

    def record(self) -> None:
        """Record as many steps as determine all of them.

        Raises:
            BreakevenError: The script gives no step anywhere; it is the first point's.
        """
        for values, step in self._traced.steps().items():
            if isinstance(step, StepTrace):
                self._steps[values] = step
            else:
                self._refused[values] = step
        if not self._steps:
            raise next(iter(self._refused.values()))

    def predict(self) -> None:
        """Predict each step on each GPU, with what the host's work takes in a plain run."""
        self._base, self._plain = self._measure_base()
        path = DevicePath(self._base.traced, self._plain)
        self._host = path.host_for_prediction(self._host, self._session.here)
        # Points that differ in nothing that is traced share their step.
        distinct = {id(step): step for step in self._steps.values()}
        prepared = {key: path.prepare(TracedRun(trace=step)) for key, step in distinct.items()}
        steps = {values: prepared[id(step)] for values, step in self._steps.items()}
        self._progress.begin(f"predicting {len(prepared)} steps on {len(self._devices)} GPUs")
        self._predictions = _predicted_grid(
            steps,
            self._devices,
            self._host,
            self._nums_devices,
            self._strategy,
        )
        self._steps = steps

    def measure(self, *, has_gpu: bool) -> None:
        """Time the steps here, at as many points as determine the others.

        Args:
            has_gpu: Time them on this machine's GPU too.
        """
        self._measured = MeasuredGrid(
            self._runs,
            self._kept,
            self._axes,
            is_there=lambda settings: self._traced_key(settings) in self._steps,
            loader_at=self._traced.loader_at,
            only_size_at=self._traced.only_size_at,
            progress=self._progress,
            on_point=self._finish,
            has_gpu=has_gpu,
        )
        self._measured.measure(self._gpu_times)
        for position, settings in enumerate(self._grid):
            if position not in self._points:
                self._finish_at(position, settings)

    def report(self) -> SweepReport:
        """Return what was found out."""
        points = tuple(
            point for position in range(len(self._grid)) for point in self._points[position]
        )
        return SweepReport(
            schema_version=SWEEP_SCHEMA_VERSION,
            target=self._session.target.label,
            arguments=self._arguments,
            host=host_summary(
                self._host,
                num_threads=self._plain.num_threads,
                torch_version=self._session.ready.torch_version,
                python_version=platform.python_version(),
            ),
            axes=self._axes,
            points=points,
            failures=self._failures(),
            crossovers=find_sweep_crossovers(points, self._axes),
            caveats=self._caveats(),
        )

    @property
    def _nums_devices(self) -> tuple[int, ...]:
        axis = self._num_devices_axis
        return tuple(int(value) for value in axis.values) if axis else (1,)

    def _measure_base(self) -> tuple[Base, PlainRun]:
        """Time the script as it is, with none of its threads or batches changed.

        Raises:
            BreakevenError: It cannot be timed at any of the points at which it was recorded; the
                error is that of the first.
        """
        first_error: Exception | None = None
        for base in self._traced.bases:
            self._progress.begin("measuring the step on this CPU")
            request = self._runs.plain_request(base.settings, None, COARSE_BUDGET_S)
            (done,) = self._kept.measure([request])
            if not isinstance(done.answer, RunFailure):
                return base, at_best_thread_count(done.answer)
            if first_error is None:  # to know the cause takes runs of its own
                first_error = self._runs.error(base.settings, done.answer, done.output)
        assert first_error is not None, "there is a step, so one was recorded unchanged"
        raise first_error

    def _gpu_times(self, held: PointSettings, sizes: Sequence[int]) -> list[dict[int, Estimate]]:
        """Return the times of one GPU of each kind along a curve of the CPU."""
        (name,) = [axis.name for axis in measured_axes(self._axes) if axis.name not in held]
        found: list[dict[int, Estimate]] = [{} for _ in self._devices]
        for size in sizes:
            key = self._traced_key(held | {name: size})
            for times, prediction in zip(found, self._predictions[key, 1], strict=True):
                if prediction.fits:
                    times[size] = prediction.estimate
        return found

    def _traced_key(self, settings: PointSettings) -> Values:
        return values_at(settings, self._traced_axes)

    def _finish(self, settings: PointSettings) -> None:
        """Take note that all is known at a point, whatever the number of GPUs."""
        for position, point in enumerate(self._grid):
            if all(point[name] == value for name, value in settings.items()):
                self._finish_at(position, point)

    def _finish_at(self, position: int, settings: PointSettings) -> None:
        points = self._points_at(settings)
        self._points[position] = points
        self._progress.finished(points, len(self._points), len(self._grid))

    def _points_at(self, settings: PointSettings) -> tuple[SweepPoint, ...]:
        """Return all devices at one point, those that were measured first."""
        key = self._traced_key(settings)
        step = self._steps.get(key)
        if step is None:
            return ()
        axis = self._num_devices_axis
        number = int(settings[axis.name]) if axis else 1
        points: list[SweepPoint] = []
        if (cpu := self._measured.cpu_at(settings)) is not None:
            run, result = cpu
            if self._names_threads:
                points.append(point_at(settings, step, result, processor=run.processor))
            else:
                points.append(point_at(settings, step, replace(result, device=run.processor)))
        gpu = self._measured.gpu.get(self._measured.key(settings))
        if gpu is not None and number == 1:
            points.append(point_at(settings, step, measured_result(gpu, DeviceKind.GPU)))
        points += [
            point_at(settings, step, device_result(prediction), num_devices=number)
            for prediction in self._predictions[key, number]
        ]
        return tuple(points)

    @property
    def _names_threads(self) -> bool:
        """Return whether threads are an axis; where not, each point has those that suit it best."""
        return axis_of(self._axes, AxisRole.THREADS) is not None

    def _failures(self) -> tuple[SweepFailure, ...]:
        found: list[SweepFailure] = []
        for settings in self._grid:
            refused = self._refused.get(self._traced_key(settings))
            failed = self._measured.failures.get(self._measured.key(settings))
            message = refused.message if refused else failed
            if message is not None:
                found.append(SweepFailure(settings=settings, message=message))
        return tuple(found)

    def _caveats(self) -> tuple[Caveat, ...]:
        caveats = [
            *self._base.traced.trace.caveats,
            *self._traced.caveats,
            *self._measured.caveats(),
        ]
        if self._names_threads:
            caveats.append(
                Caveat(
                    code="threads-of-the-cpu",
                    message="torch's threads are those of the CPU's step: the times of the GPUs "
                    "do not depend on them",
                )
            )
        if self._host.is_measured and self._plain.processor != self._host.name:
            caveats.append(
                Caveat(
                    code="measured-elsewhere",
                    message=f"the CPU's steps were measured on {self._plain.processor}, while the "
                    f"GPUs are fed by this machine's {self._host.name}",
                )
            )
        if self._num_devices_axis:
            caveats.append(
                Caveat(
                    code="batch-per-device",
                    message="each GPU has the script's own batch, so n GPUs do n times the samples "
                    "of a step: compare samples per second; the CPU's step is one batch",
                )
            )
        return tuple({caveat.message: caveat for caveat in caveats}.values())


def _predicted_grid(
    steps: Mapping[Values, StepTrace],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    nums_devices: Sequence[int],
    strategy: Strategy,
) -> Predictions:
    """Return each step on each device, in the order of the devices.

    Args:
        steps: Steps by the values of the traced axes.
        devices: GPUs.
        host: What issues the work.
        nums_devices: How many of a kind share a step, each with the batch of the step.
        strategy: How several share it.
    """
    # Points that differ in nothing that is traced share their step.
    distinct = {id(step): step for step in steps.values()}
    lone: dict[int, tuple[StepPrediction, ...]] = {}
    items = list(distinct.items())
    for first in range(0, len(items), _STEPS_AT_ONCE):
        some = items[first : first + _STEPS_AT_ONCE]
        flat = iter(predict_steps([step for _, step in some], devices, host))
        lone |= {key: tuple(next(flat) for _ in devices) for key, _ in some}
    found: Predictions = {(values, 1): lone[id(step)] for values, step in steps.items()}
    shared = [number for number in nums_devices if number > 1]
    if not shared:
        return found
    for values, step in steps.items():
        program, size = build_program(step), model_size(step)
        for index, device in enumerate(devices):
            times = phase_times(program, device, host)
            for number in shared:
                prediction = predict_multi_gpu(
                    step,
                    device,
                    host,
                    MultiGpuSetup(strategy=strategy, num_devices=number),
                    single=found[values, 1][index],
                    times=times,
                    size=size,
                )
                before = found.get((values, number), ())
                found[values, number] = (*before, prediction.step)
    return found
