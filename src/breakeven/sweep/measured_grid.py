"""The step at the points of a grid, timed: at some of them, and interpolated at others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from breakeven.capture import LoaderUse, PlainRun, RunFailure, RunRequest
from breakeven.errors import Caveat
from breakeven.session import at_best_thread_count, measured_result
from breakeven.sweep.axes import is_whole
from breakeven.sweep.cpu_curve import CpuCurve
from breakeven.sweep.engine import EngineRun, RunCache
from breakeven.sweep.grid import (
    GridRuns,
    PointSettings,
    SweepProgress,
    Values,
    axis_of,
    describe,
    grid_of,
    measured_axes,
    values_at,
)
from breakeven.timing import Estimate, Source
from breakeven.verdict import AxisRole, AxisValue, DeviceKind, DeviceResult, SweepAxis

# Far from any other curve a time need not be known well; where curves are close, it is.
COARSE_BUDGET_S = 0.3
_CLOSE_BUDGET_S = 0.6
# How long the sizes near crossings may take for one curve, and for all of them.
_CLOSE_S = 8.0
_MOST_CLOSE_S = 60.0

LoaderAt = Callable[[Mapping[str, AxisValue]], LoaderUse | None]
# Times of GPUs by size, at the held settings of a curve.
OthersAt = Callable[[PointSettings, Sequence[int]], Sequence[Mapping[int, Estimate]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """One curve and where it is in the grid."""

    held: PointSettings
    sizes: CpuCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A point to time."""

    settings: PointSettings
    curve: CpuCurve | None = None
    size: int = 0


class MeasuredGrid:
    """Times the step on this CPU, and on this machine's GPU where there is one.

    Args:
        runs: Knows how settings enter the script.
        kept: Makes the runs.
        axes: All axes of the sweep.
        is_there: Whether there is a step at given settings.
        loader_at: The script's own loader at given settings.
        progress: Progress callback, of stages.
        on_point: Called with the settings of each point that was timed or cannot be.
        has_gpu: Time the step on this machine's GPU too.
        only_size_at: The one batch size at given settings, where it cannot be set from outside.
    """

    def __init__(
        self, runs: GridRuns, kept: RunCache, axes: Sequence[SweepAxis], *,
        is_there: Callable[[PointSettings], bool], loader_at: LoaderAt, progress: SweepProgress,
        on_point: Callable[[PointSettings], None], has_gpu: bool,
        only_size_at: Callable[[PointSettings], int | None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._runs = runs
        self._kept = kept
        self._axes = measured_axes(axes)
        self._loader_at = loader_at
        self._progress = progress
        self._on_point = on_point
        self._has_gpu = has_gpu
        self._last_s: float | None = None
        self.cpu: dict[Values, PlainRun] = {}
        self.gpu: dict[Values, PlainRun] = {}
        self.failures: dict[Values, str] = {}
        self._gpu_problems: list[str] = []
        self._only_size_at = only_size_at
        is_hand_fed = any(only_size_at(settings) for settings in grid_of(self._axes))
        self._curve_axis = (
            axis_of(self._axes, AxisRole.BATCH_SIZE) if is_hand_fed else _curve_axis(self._axes)
        )
        self._curves = self._make_curves(is_there)
        self._singles = [] if self._curve_axis else [s for s in grid_of(self._axes) if is_there(s)]

    def measure(self, others_at: OthersAt) -> None:
        """Time what has to be.

        Args:
            others_at: The times of the GPUs that the CPU is compared with.
        """
        self._time([_Job(settings=settings) for settings in self._singles], COARSE_BUDGET_S)
        while jobs := self._jobs(lambda curve: curve.sizes.next_coarse()):
            self._time(jobs, COARSE_BUDGET_S)
        deadline_s = monotonic() + min(_CLOSE_S * len(self._curves), _MOST_CLOSE_S)
        while monotonic() < deadline_s:
            jobs = self._jobs(
                lambda curve: curve.sizes.next_close(others_at(curve.held, curve.sizes.sizes))
            )
            if not jobs:
                break
            self._time(jobs, _CLOSE_BUDGET_S, deadline_s)

    def cpu_at(self, settings: PointSettings) -> tuple[PlainRun, DeviceResult] | None:
        """Return the CPU's result, measured or interpolated, and a run of the same curve.

        None where the time is unknown.
        """
        run = self.cpu.get(self.key(settings))
        if run is not None:
            return run, measured_result(run, DeviceKind.CPU)
        curve, axis = self._curve_at(settings), self._curve_axis
        if curve is None or axis is None:
            return None
        size = settings[axis.name]
        assert isinstance(size, int)
        if not curve.sizes.is_known(size):
            return None
        run = self.cpu[self.key(settings | {axis.name: min(curve.sizes.measured)})]
        return run, _interpolated(run, curve.sizes.at(size))

    def key(self, settings: PointSettings) -> Values:
        """Return the values of the axes on which the time depends."""
        return values_at(settings, self._axes)

    def caveats(self) -> tuple[Caveat, ...]:
        """Return what was not measured, and why."""
        found: list[Caveat] = []
        if self._gpu_problems:
            found.append(
                Caveat(
                    code="gpu-not-measured",
                    message=f"{len(self._gpu_problems)} points could not be measured on this "
                    f"machine's GPU, the first at {self._gpu_problems[0]}",
                )
            )
        for curve in self._curves:
            skipped = curve.sizes.skipped
            if skipped is None or self._curve_axis is None:
                continue
            at = f" at {describe(curve.held)}" if curve.held else ""
            larger = [size for size in curve.sizes.sizes if size >= skipped.size]
            known = [size for size in larger if curve.sizes.is_known(size)]
            then = "are predicted from the others" if known else "are left out"
            if known and known != larger:
                then += f" up to {known[-1]}, and left out beyond"
            found.append(
                Caveat(
                    code="size-not-measured",
                    message=f"{self._curve_axis.name} from {skipped.size} on was not measured "
                    f"on this CPU{at}, since {skipped.because}; its times there {then}",
                )
            )
        return tuple(found)

    def _make_curves(self, is_there: Callable[[PointSettings], bool]) -> list[_Curve]:
        axis = self._curve_axis
        if axis is None:
            return []
        curves: list[_Curve] = []
        for held in grid_of([other for other in self._axes if other is not axis]):
            sizes = [value for value in axis.values if is_there(held | {axis.name: value})]
            if sizes:
                whole = [size for size in sizes if isinstance(size, int)]
                is_set = axis.role is not AxisRole.BATCH_SIZE
                only = None if is_set else self._only_size_at(held)
                curve = CpuCurve(whole, is_batch_size=_is_batch_size(axis), only=only)
                curves.append(_Curve(held=held, sizes=curve))
        return curves

    def _curve_at(self, settings: PointSettings) -> _Curve | None:
        return next(
            (
                curve
                for curve in self._curves
                if all(settings[name] == value for name, value in curve.held.items())
            ),
            None,
        )

    def _jobs(self, wanted: Callable[[_Curve], list[int]]) -> list[_Job]:
        axis = self._curve_axis
        if axis is None:
            return []
        return [
            _Job(settings=curve.held | {axis.name: size}, curve=curve.sizes, size=size)
            for curve in self._curves
            for size in wanted(curve)
        ]

    def _time(self, jobs: Sequence[_Job], budget_s: float, deadline_s: float | None = None) -> None:
        """Time points, until the deadline where there is one."""
        by_request: dict[RunRequest, list[_Job]] = {}
        for job in jobs:
            loader = self._loader_at(job.settings)
            request = self._runs.plain_request(job.settings, loader, budget_s)
            by_request.setdefault(request, []).append(job)
            if self._has_gpu:
                by_request.setdefault(
                    replace(request, on_gpu=True, tries_threads=False), []
                ).append(job)
        waiting = list(by_request)
        self._begin(by_request, waiting)
        answers = self._kept.measure(list(by_request))
        started_s = monotonic()
        for done in answers:
            elapsed_s, started_s = monotonic() - started_s, monotonic()
            if elapsed_s > budget_s:  # otherwise it was kept from before
                self._last_s = elapsed_s
            for job in by_request[done.request]:
                self._take(job, done)
            waiting.remove(done.request)
            if deadline_s is not None and monotonic() > deadline_s:
                break
            self._begin(by_request, waiting)

    def _begin(
        self, by_request: Mapping[RunRequest, Sequence[_Job]], waiting: Sequence[RunRequest]
    ) -> None:
        if waiting:
            where = "GPU" if waiting[0].on_gpu else "CPU"
            at = describe(by_request[waiting[0]][0].settings)
            self._progress.begin(f"measuring the step on this {where} at {at}", self._last_s)

    def _take(self, job: _Job, done: EngineRun) -> None:
        key = self.key(job.settings)
        problem = self._problem(job, done)
        if done.request.on_gpu:
            if isinstance(done.answer, PlainRun) and problem is None:
                self.gpu[key] = done.answer
            elif problem is not None:
                self._gpu_problems.append(f"{describe(job.settings)}: {problem}")
            return
        if isinstance(done.answer, PlainRun) and problem is None:
            run = self.cpu[key] = at_best_thread_count(done.answer)
            if job.curve is not None:
                job.curve.add(job.size, run.measurement.estimate, run.peak_memory_bytes)
        else:
            assert problem is not None
            self.failures[key] = problem
            if job.curve is not None:
                job.curve.fail(job.size)
        self._on_point(job.settings)

    def _problem(self, job: _Job, done: EngineRun) -> str | None:
        """Return why a run is no measurement of its point."""
        if isinstance(done.answer, RunFailure):
            return self._runs.what_ended(job.settings, done.answer)
        wanted = done.request.new_batch_size
        loader = done.answer.loader
        if wanted and (loader is None or loader.batch_size != wanted):
            return f"the script does not load batches of {wanted} when its DataLoader is asked to"
        return None


def _interpolated(run: PlainRun, time: Estimate) -> DeviceResult:
    """Return the result of this CPU at a size between measured ones, of which ``run`` is one."""
    return replace(
        measured_result(run, DeviceKind.CPU),
        source=Source.PREDICTED,
        step_ns=time.value_ns,
        low_ns=time.low_ns,
        high_ns=time.high_ns,
        fits=None,
        caveats=(),
        num_samples=0,
        num_threads=None,
    )


def _curve_axis(axes: Sequence[SweepAxis]) -> SweepAxis | None:
    """Return the axis along which times are interpolated: the one with the most values."""
    candidates = [axis for axis in axes if axis.role is not AxisRole.THREADS and is_whole(axis)]
    # Among equals, times along a batch size are interpolated best.
    return max(candidates, key=lambda axis: (len(axis.values), _is_batch_size(axis)), default=None)


def _is_batch_size(axis: SweepAxis) -> bool:
    return axis.role is AxisRole.BATCH_SIZE or axis.name == "batch_size"
