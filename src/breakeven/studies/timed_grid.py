"""The step at the points of a grid, timed: at some of them, and interpolated at others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from msgspec.structs import replace

from breakeven.capture import PlainRun, RunFailure, RunRequest
from breakeven.errors import Caveat
from breakeven.progress import Progress
from breakeven.studies.cpu_curve import CpuCurve
from breakeven.studies.engine import EngineRun, RunCache
from breakeven.studies.measured_step import at_best_thread_count, measured_result
from breakeven.studies.recorded_grid import RecordedGrid
from breakeven.studies.runner import Runner
from breakeven.studies.sweep_axes import (
    Grid,
    Settings,
    Values,
    describe,
    is_whole,
    points_of,
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

# Times of GPUs by size, at the held settings of a curve.
OthersAt = Callable[[Settings, Sequence[int]], Sequence[Mapping[int, Estimate]]]
# A point to time, and the curve that it is on.
_Job = tuple[dict[str, AxisValue], CpuCurve | None]


def timing_request(
    runner: Runner, grid: Grid, recorded: RecordedGrid | None, settings: Settings, budget_s: float
) -> RunRequest:
    """Return how the step is timed on a CPU at a point.

    Args:
        runner: Knows the script.
        grid: Knows how settings enter it.
        recorded: Knows the loaders whose batch size is changed; None to change none.
        settings: The point.
        budget_s: How long to take samples.
    """
    change = grid.change_at(settings, recorded.loader_at(settings) if recorded else None)
    tries_threads = grid.axis_of(AxisRole.THREADS) is None
    return replace(runner.request_of(change), budget_s=budget_s, tries_threads=tries_threads)


class TimedGrid:
    """Times the step on this CPU, and on this machine's GPU if there is one.

    Args:
        runner: Knows the script.
        grid: All points of the sweep.
        recorded: Knows the script's loaders.
        kept: Makes the runs.
        is_there: Whether there is a step at given settings.
        progress: Progress callback, of stages.
        on_point: Called with the settings of each point that was timed or cannot be.
        has_gpu: Time the step on this machine's GPU too.
    """

    def __init__(
        self, runner: Runner, grid: Grid, recorded: RecordedGrid, kept: RunCache, *,
        is_there: Callable[[Settings], bool], progress: Progress,
        on_point: Callable[[Settings], None], has_gpu: bool,
    ) -> None:  # fmt: skip
        self._runner = runner
        self._grid = grid
        self._recorded = recorded
        self._kept = kept
        self._progress = progress
        self._on_point = on_point
        self._has_gpu = has_gpu
        self._last_s: float | None = None
        # By the values of the axes on which the time depends.
        self.cpu: dict[Values, PlainRun] = {}
        self.gpu: dict[Values, PlainRun] = {}
        self.failures: dict[Values, str] = {}
        self._gpu_problems: list[str] = []

        axes = grid.timed_axes
        points = points_of(axes)
        is_hand_fed = any(recorded.only_size_at(settings) for settings in points)
        axis = grid.axis_of(AxisRole.BATCH_SIZE) if is_hand_fed else _curve_axis(axes)
        self._curve_axis = axis
        self._curves: list[CpuCurve] = []
        self._singles: list[_Job] = []
        if axis is None:
            self._singles = [(settings, None) for settings in points if is_there(settings)]
            return
        for held in points_of([other for other in axes if other is not axis]):
            values = [value for value in axis.values if is_there({**held, axis.name: value})]
            sizes = [value for value in values if isinstance(value, int)]
            if sizes:
                is_set = axis.role is not AxisRole.BATCH_SIZE
                only = None if is_set else recorded.only_size_at(held)
                self._curves.append(
                    CpuCurve(sizes, held=held, is_batch_size=_is_batch_size(axis), only=only)
                )

    def measure(self, others_at: OthersAt) -> None:
        """Time what has to be.

        Args:
            others_at: The times of the GPUs that the CPU is compared with.
        """
        self._time(self._singles, COARSE_BUDGET_S)
        while jobs := self._jobs(lambda curve: curve.next_coarse()):
            self._time(jobs, COARSE_BUDGET_S)
        deadline_s = monotonic() + min(_CLOSE_S * len(self._curves), _MOST_CLOSE_S)
        while monotonic() < deadline_s:
            jobs = self._jobs(lambda curve: curve.next_close(others_at(curve.held, curve.sizes)))
            if not jobs:
                break
            self._time(jobs, _CLOSE_BUDGET_S, deadline_s)

    def cpu_at(self, settings: Settings) -> tuple[PlainRun, DeviceResult] | None:
        """Return the CPU's result, measured or interpolated, and a run of the same curve.

        None if the time is unknown.
        """
        run = self.cpu.get(self.key(settings))
        if run is not None:
            return run, measured_result(run, DeviceKind.CPU)
        axis = self._curve_axis
        on_curve = (curve for curve in self._curves if curve.held.items() <= dict(settings).items())
        curve = next(on_curve, None)
        if curve is None or axis is None:
            return None
        size = settings[axis.name]
        assert isinstance(size, int)
        if not curve.is_known(size):
            return None
        run = self.cpu[self.key({**settings, axis.name: min(curve.measured)})]
        time = curve.at(size)
        return run, replace(
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

    def key(self, settings: Settings) -> Values:
        """Return the values of the axes on which the time depends."""
        return values_at(settings, self._grid.timed_axes)

    def caveats(self) -> tuple[Caveat, ...]:
        """Return what was not measured, and why."""
        found: list[Caveat] = []
        if self._gpu_problems:
            message = (
                f"{len(self._gpu_problems)} points could not be measured on this machine's GPU, "
                f"the first at {self._gpu_problems[0]}"
            )
            found.append(Caveat(code="gpu-not-measured", message=message))
        for curve in self._curves:
            skipped = curve.skipped
            if skipped is None or self._curve_axis is None:
                continue
            at = f" at {describe(curve.held)}" if curve.held else ""
            larger = [size for size in curve.sizes if size >= skipped.size]
            known = [size for size in larger if curve.is_known(size)]
            then = "are predicted from the others" if known else "are left out"
            if known and known != larger:
                then += f" up to {known[-1]}, and left out beyond"
            message = (
                f"{self._curve_axis.name} from {skipped.size} on was not measured on this CPU{at}, "
                f"since {skipped.because}; its times there {then}"
            )
            found.append(Caveat(code="size-not-measured", message=message))
        return tuple(found)

    def _jobs(self, wanted: Callable[[CpuCurve], list[int]]) -> list[_Job]:
        axis = self._curve_axis
        if axis is None:
            return []
        return [
            ({**curve.held, axis.name: size}, curve)
            for curve in self._curves
            for size in wanted(curve)
        ]

    def _time(self, jobs: Sequence[_Job], budget_s: float, deadline_s: float | None = None) -> None:
        """Time points, until the deadline if there is one."""
        by_request: dict[RunRequest, list[_Job]] = {}
        for job in jobs:
            request = timing_request(self._runner, self._grid, self._recorded, job[0], budget_s)
            by_request.setdefault(request, []).append(job)
            if self._has_gpu:
                on_gpu = replace(request, on_gpu=True, tries_threads=False)
                by_request.setdefault(on_gpu, []).append(job)
        waiting = list(by_request)
        self._begin(waiting, by_request)
        started_s = monotonic()
        for done in self._kept.measure(list(by_request)):
            elapsed_s, started_s = monotonic() - started_s, monotonic()
            if elapsed_s > budget_s:  # otherwise it was kept from before
                self._last_s = elapsed_s
            for job in by_request[done.request]:
                self._take(job, done)
            waiting.remove(done.request)
            if deadline_s is not None and monotonic() > deadline_s:
                break
            self._begin(waiting, by_request)

    def _begin(
        self, waiting: Sequence[RunRequest], by_request: Mapping[RunRequest, Sequence[_Job]]
    ) -> None:
        if waiting:
            where = "GPU" if waiting[0].on_gpu else "CPU"
            at = describe(by_request[waiting[0]][0][0])
            self._progress.begin(f"measuring the step on this {where} at {at}", self._last_s)

    def _take(self, job: _Job, done: EngineRun) -> None:
        """Take the answer at a point, or why it is no measurement of that."""
        settings, curve = job
        key, answer, wanted = self.key(settings), done.answer, done.request.new_batch_size
        problem = ""
        if isinstance(answer, RunFailure):
            problem = self._runner.error(done.request, answer, "").message
        elif wanted and (answer.loader is None or answer.loader.batch_size != wanted):
            problem = (
                f"the script does not load batches of {wanted} when its DataLoader is asked to"
            )
        if done.request.on_gpu:
            if problem or isinstance(answer, RunFailure):
                self._gpu_problems.append(f"{describe(settings)}: {problem}")
            else:
                self.gpu[key] = answer
            return
        size = settings[self._curve_axis.name] if self._curve_axis else 0
        assert isinstance(size, int)
        if problem or isinstance(answer, RunFailure):
            self.failures[key] = problem
            if curve is not None:
                curve.fail(size)
        else:
            run = self.cpu[key] = at_best_thread_count(answer)
            if curve is not None:
                curve.add(size, run.measurement.estimate, run.peak_memory_bytes)
        self._on_point(settings)


def _curve_axis(axes: Sequence[SweepAxis]) -> SweepAxis | None:
    """Return the axis along which times are interpolated: the one with the most values."""
    candidates = [axis for axis in axes if axis.role is not AxisRole.THREADS and is_whole(axis)]
    # Among equals, times along a batch size are interpolated best.
    return max(candidates, key=lambda axis: (len(axis.values), _is_batch_size(axis)), default=None)


def _is_batch_size(axis: SweepAxis) -> bool:
    return axis.role is AxisRole.BATCH_SIZE or axis.name == "batch_size"
