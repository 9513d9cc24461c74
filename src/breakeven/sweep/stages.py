"""The stages of one sweep, and what they find out together."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial

from breakeven.capture import PlainRun, RunFailure, TracedRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import BreakevenError, Caveat
from breakeven.session import DevicePath, at_its_best
from breakeven.simulate import Strategy
from breakeven.sweep.grid import Settings, Values, axis_of, grid_of, traced_axes, values_at
from breakeven.sweep.kept_runs import KeptRuns
from breakeven.sweep.measured_grid import COARSE_BUDGET_S, MeasuredGrid
from breakeven.sweep.points import measured_point, predicted_point, told_point
from breakeven.sweep.predicted_grid import Predictions, predict_grid
from breakeven.sweep.progress import SweepProgress
from breakeven.sweep.script_runs import ScriptRuns
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
    find_sweep_crossovers,
    host_summary,
)


class SweepStages:
    """One sweep: `record`, `predict` and `measure`, in this order, then `report`.

    Args:
        axes: With their roles.
        runs: Runs the script.
        kept: Makes and keeps the measured runs.
        devices: GPUs.
        host: What feeds them.
        here: This machine's costs.
        strategy: How several GPUs share a step.
        progress: Is told what happens.
    """

    def __init__(
        self, axes: Sequence[SweepAxis], runs: ScriptRuns, kept: KeptRuns,
        devices: Sequence[DeviceSpec], host: HostSpec, here: HostSpec, strategy: Strategy,
        progress: SweepProgress,
    ) -> None:  # fmt: skip
        self._axes = tuple(axes)
        self._traced_axes = traced_axes(axes)
        self._num_devices_axis = axis_of(axes, AxisRole.NUM_DEVICES)
        self._grid = grid_of(axes)
        self._runs = runs
        self._kept = kept
        self._devices = devices
        self._host = host
        self._here = here
        self._strategy = strategy
        self._progress = progress
        self._traced = TracedGrid(runs, axes)
        self._steps: dict[Values, StepTrace] = {}
        self._refused: dict[Values, BreakevenError] = {}
        self._predictions: Predictions = {}
        # By position in the grid, as soon as they are known.
        self._points: dict[int, tuple[SweepPoint, ...]] = {}

    def record(self) -> None:
        """Record as many steps as tell all of them.

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
        """Predict each step on each GPU, with what the host's own work takes in a plain run."""
        self._base, self._plain = self._measure_base()
        path = DevicePath(self._base.traced, self._plain)
        self._host = path.feeding(self._host, self._here)
        # Points that differ in nothing that is traced share their step.
        distinct = {id(step): step for step in self._steps.values()}
        prepared = {key: path.prepare(TracedRun(trace=step)) for key, step in distinct.items()}
        steps = {values: prepared[id(step)] for values, step in self._steps.items()}
        self._progress.begin(f"predicting {len(prepared)} steps on {len(self._devices)} GPUs")
        self._predictions = predict_grid(
            steps,
            self._devices,
            self._host,
            nums_devices=self._nums_devices,
            strategy=self._strategy,
        )
        self._steps = steps

    def measure(self, *, has_gpu: bool) -> None:
        """Time the steps here, at as many points as tell the others.

        Args:
            has_gpu: Time them on this machine's GPU too.
        """
        self._measured = MeasuredGrid(
            self._runs,
            self._kept,
            self._axes,
            is_there=lambda settings: self._traced_key(settings) in self._steps,
            loader_at=self._traced.loader_at,
            progress=self._progress,
            on_point=self._finish,
            has_gpu=has_gpu,
        )
        self._measured.measure(self._gpu_times)
        for position, settings in enumerate(self._grid):
            if position not in self._points:
                self._finish_at(position, settings)

    def report(self, *, target: str, arguments: tuple[str, ...], torch_version: str) -> SweepReport:
        """Return what was found out.

        Args:
            target: As it was given.
            arguments: As they were given.
            torch_version: torch that ran the script.
        """
        points = tuple(
            point for position in range(len(self._grid)) for point in self._points[position]
        )
        return SweepReport(
            schema_version=SWEEP_SCHEMA_VERSION,
            target=target,
            arguments=arguments,
            host=host_summary(
                self._host,
                num_threads=self._plain.num_threads,
                torch_version=torch_version,
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
                return base, at_its_best(done.answer)
            if first_error is None:  # to know the cause takes runs of its own
                first_error = self._runs.error(base.settings, done.answer, done.output)
        assert first_error is not None, "there is a step, so one was recorded unchanged"
        raise first_error

    def _gpu_times(self, held: Settings, sizes: Sequence[int]) -> list[dict[int, Estimate]]:
        """Return the times of one GPU of each kind along a curve of the CPU."""
        (name,) = [axis.name for axis in self._axes if axis.name not in held and self._is_cpu(axis)]
        found: list[dict[int, Estimate]] = [{} for _ in self._devices]
        for size in sizes:
            key = self._traced_key(held | {name: size})
            for times, prediction in zip(found, self._predictions[key, 1], strict=True):
                if prediction.fits:
                    times[size] = prediction.estimate
        return found

    @staticmethod
    def _is_cpu(axis: SweepAxis) -> bool:
        return axis.role is not AxisRole.NUM_DEVICES

    def _traced_key(self, settings: Settings) -> Values:
        return values_at(settings, self._traced_axes)

    def _finish(self, settings: Settings) -> None:
        """Take note that all is known at a point, whatever the number of GPUs."""
        for position, point in enumerate(self._grid):
            if all(point[name] == value for name, value in settings.items()):
                self._finish_at(position, point)

    def _finish_at(self, position: int, settings: Settings) -> None:
        points = self._points_at(settings)
        self._points[position] = points
        self._progress.finished(points, len(self._points), len(self._grid))

    def _points_at(self, settings: Settings) -> tuple[SweepPoint, ...]:
        """Return all devices at one point, those that were measured first."""
        key = self._traced_key(settings)
        step = self._steps.get(key)
        if step is None:
            return ()
        axis = self._num_devices_axis
        number = int(settings[axis.name]) if axis else 1
        measured = self._measured.key(settings)
        point_of = partial(measured_point, settings, step, names_threads=self._names_threads)
        points: list[SweepPoint] = []
        time = self._measured.time_at(settings)
        near = self._measured.run_near(settings)
        if measured in self._measured.cpu:
            run = self._measured.cpu[measured]
            points.append(point_of(run, DeviceKind.CPU))
        if measured in self._measured.gpu and number == 1:
            run = self._measured.gpu[measured]
            points.append(point_of(run, DeviceKind.GPU))
        if measured not in self._measured.cpu and time is not None and near is not None:
            told = told_point(settings, step, near, time, names_threads=self._names_threads)
            points.append(told)
        points += [
            predicted_point(settings, step, prediction, number)
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
