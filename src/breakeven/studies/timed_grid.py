"""The step at the points of a grid: timed at some points, and interpolated at others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace

from breakeven.capture import PlainRun, RunFailure, RunRequest
from breakeven.errors import Caveat
from breakeven.progress import Progress
from breakeven.studies.batch_sizes import (
    BEYOND_MEASURED,
    FARTHEST,
    LONGEST_STEP_NS,
    SkippedSize,
    why_not_measured,
)
from breakeven.studies.engine import EngineRun, RunCache
from breakeven.studies.measured_step import at_best_thread_count, measured_result
from breakeven.studies.recorded_grid import RecordedGrid
from breakeven.studies.runner import Runner
from breakeven.studies.sweep_axes import (
    Grid,
    Settings,
    Values,
    describe,
    points_of,
    values_at,
)
from breakeven.timing import Estimate, Source
from breakeven.verdict import (
    AxisRole,
    AxisValue,
    DeviceKind,
    DeviceResult,
    LogRatio,
    SizeCurve,
    SweepAxis,
    curve_point,
    log_ratio,
)

# A time far from any other curve may be imprecise; close curves need more precision.
COARSE_BUDGET_S = 0.3
_CLOSE_BUDGET_S = 0.6
# Limits on the time near crossings, for one curve and for all.
_CLOSE_S = 8.0
_MOST_CLOSE_S = 60.0

# Returns the times of GPUs by size, at the fixed settings of a curve.
OthersAt = Callable[[Settings, Sequence[int]], Sequence[Mapping[int, Estimate]]]
# A point to time, and its curve.
_Job = tuple[dict[str, AxisValue], "CpuCurve | None"]


def timing_request(
    runner: Runner, grid: Grid, recorded: RecordedGrid | None, settings: Settings, budget_s: float
) -> RunRequest:
    """Return the request that times the step on a CPU at a point.

    Args:
        runner: Has the script.
        grid: Has the changes for settings.
        recorded: Has the loaders whose batch size is changed; None to change none.
        settings: The point.
        budget_s: Seconds of sampling.
    """
    change = grid.change_at(settings, recorded.loader_at(settings) if recorded else None)
    tries_threads = grid.axis_of(AxisRole.THREADS) is None
    return replace(runner.request_of(change), budget_s=budget_s, tries_threads=tries_threads)


@dataclass(kw_only=True)
class TimedGrid:
    """Times the step on this CPU, and on this machine's GPU if there is one.

    Args:
        runner: Has the script.
        grid: All points of the sweep.
        recorded: Has the script's loaders.
        kept: Makes the runs.
        is_there: Whether there is a step at given settings.
        progress: Progress callback, for stages.
        on_point: Called with the settings of each point that was timed or has failed.
        has_gpu: Also time the step on this machine's GPU.
        cpu: Runs by the values of the axes that affect the time.
        gpu: The same on the GPU.
        failures: Error messages of points without a run.
    """

    runner: Runner
    grid: Grid
    recorded: RecordedGrid
    kept: RunCache
    is_there: Callable[[Settings], bool]
    progress: Progress
    on_point: Callable[[Settings], None]
    has_gpu: bool
    cpu: dict[Values, PlainRun] = field(default_factory=dict[Values, PlainRun])
    gpu: dict[Values, PlainRun] = field(default_factory=dict[Values, PlainRun])
    failures: dict[Values, str] = field(default_factory=dict[Values, str])

    def __post_init__(self) -> None:
        """Choose the axis of interpolation, and make its curves."""
        self._gpu_problems: list[str] = []
        self._curves: list[CpuCurve] = []
        self._singles: list[_Job] = []
        axes = self.grid.timed_axes
        points = points_of(axes)
        is_hand_fed = any(map(self.recorded.only_size_at, points))
        axis = self.grid.axis_of(AxisRole.BATCH_SIZE) if is_hand_fed else _curve_axis(axes)
        self._curve_axis = axis
        if axis is None:
            self._singles = [(settings, None) for settings in points if self.is_there(settings)]
            return
        for held in points_of([other for other in axes if other is not axis]):
            values = [value for value in axis.values if self.is_there({**held, axis.name: value})]
            sizes = [value for value in values if isinstance(value, int)]
            is_set = axis.role is not AxisRole.BATCH_SIZE
            only = None if is_set or not sizes else self.recorded.only_size_at(held)
            if sizes:
                is_size = _is_batch_size(axis)
                curve = CpuCurve(sizes, held=held, is_batch_size=is_size, only=only)
                self._curves.append(curve)

    def measure(self, others_at: OthersAt) -> None:
        """Time the points that need it.

        Args:
            others_at: Returns the times of the GPUs to compare with.
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
        """Return the CPU's result, measured or interpolated, and a run of its curve.

        The result is None if the time is unknown.
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
        run = self.cpu[self.key({**settings, axis.name: curve.smallest})]
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
        """Return the values of the axes that affect the time."""
        return values_at(settings, self.grid.timed_axes)

    def caveats(self) -> tuple[Caveat, ...]:
        """Return caveats on points that were not measured."""
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
            request = timing_request(self.runner, self.grid, self.recorded, job[0], budget_s)
            by_request.setdefault(request, []).append(job)
            if self.has_gpu:
                on_gpu = replace(request, on_gpu=True, tries_threads=False)
                by_request.setdefault(on_gpu, []).append(job)
        if jobs:
            more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
            self.progress.begin(f"measuring the step at {describe(jobs[0][0])}{more}")
        for done in self.kept.measure(list(by_request)):
            for job in by_request[done.request]:
                self._take(job, done)
            if deadline_s is not None and monotonic() > deadline_s:
                break

    def _take(self, job: _Job, done: EngineRun) -> None:
        """Store the answer at a point, or the reason why it is no measurement."""
        settings, curve = job
        key, answer, wanted = self.key(settings), done.answer, done.request.new_batch_size
        problem = ""
        if isinstance(answer, RunFailure):
            problem = self.runner.error(done.request, answer, "").message
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
        self.on_point(settings)


def _curve_axis(axes: Sequence[SweepAxis]) -> SweepAxis | None:
    """Return the axis of interpolation: the one with the most values."""
    candidates = [axis for axis in axes if axis.role is not AxisRole.THREADS and axis.is_whole]
    # Among equals, prefer a batch size, since its times interpolate best.
    return max(candidates, key=lambda axis: (len(axis.values), _is_batch_size(axis)), default=None)


def _is_batch_size(axis: SweepAxis) -> bool:
    return axis.role is AxisRole.BATCH_SIZE or axis.name == "batch_size"


# Times over a batch size are straight lines with known deviations. Times over another knob grow
# faster than it, so each measurement determines fewer others.
_BATCH_FACTOR = 4.0
_OTHER_FACTOR = 2.0
# Up to this many values of another knob, measure all: for example depths from 2 to 12.
_MOST_MEASURED = 12
# Allow longer steps for another knob: a user who names it wants its large values too.
_LONGEST_OTHER_NS = 10.0 * LONGEST_STEP_NS


class CpuCurve:
    """The sizes of one curve: chooses the next measurements, and interpolates the rest.

    Args:
        sizes: All sizes, each at least 1.
        is_batch_size: Whether they are batch sizes.
        held: Fixed settings of the curve in its grid.
        only: The only measurable size; None if all are measurable.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        is_batch_size: bool,
        held: Mapping[str, AxisValue] | None = None,
        only: int | None = None,
    ) -> None:
        self.sizes = sorted(sizes)
        self.held = held or {}
        self.skipped: SkippedSize | None = None
        self._is_batch_size = is_batch_size
        self._times: dict[int, Estimate] = {}
        self._peaks_bytes: dict[int, int] = {}
        self._failed: set[int] = set()
        self._beyond = BEYOND_MEASURED if only is None else FARTHEST
        self._coarse = self._coarse_sizes() if only is None else [only]

    @property
    def smallest(self) -> int:
        """Return the smallest size that was measured."""
        return min(self._times)

    def add(self, size: int, time: Estimate, peak_memory_bytes: int) -> None:
        """Add a measurement."""
        self._times[size] = time
        self._peaks_bytes[size] = peak_memory_bytes

    def fail(self, size: int) -> None:
        """Record that a size cannot be measured."""
        self._failed.add(size)

    def next_coarse(self) -> list[int]:
        """Return the sizes to measure next; none if the curve is known from end to end."""
        todo = [
            size for size in self._coarse if size not in self._times and size not in self._failed
        ]
        if not self._times:
            return todo[:1]  # its time predicts the others
        allowed = [size for size in todo if self._why_not(size) is None]
        if todo and not allowed:
            because = self._why_not(todo[0])
            assert because is not None
            self.skipped = SkippedSize(size=todo[0], because=because)
        return allowed

    def next_close(self, others: Sequence[Mapping[int, Estimate]]) -> list[int]:
        """Return the sizes to measure next to locate the crossings with other curves.

        Args:
            others: Times of other devices, each by size.
        """
        known = [size for size in self.sizes if self.is_known(size)]
        if len(self._times) < 2:
            return []
        curve = SizeCurve(self._times)
        wanted: list[int] = []
        for other in others:
            sizes = [size for size in known if size in other]
            ratios = {
                size: log_ratio(curve_point(size, curve.at(size)), curve_point(size, other[size]))
                for size in sizes
            }
            for size in _near_crossing(ratios):
                is_open = size not in self._times and size not in self._failed
                if is_open and self._why_not(size) is None:
                    wanted.append(size)
                    break
        return list(dict.fromkeys(wanted))

    def is_known(self, size: int) -> bool:
        """Return whether the time at a size is known."""
        if not self._times or size in self._failed:
            return False
        low, high = min(self._times), max(self._times)
        if any(high < failed <= size for failed in self._failed):
            return False  # larger sizes most likely fail too
        if self._is_batch_size:
            return low // self._beyond <= size <= high * self._beyond
        return low <= size <= high

    def at(self, size: int) -> Estimate:
        """Return the time at a known size."""
        return SizeCurve(self._times).at(size)

    def _coarse_sizes(self) -> list[int]:
        if not self._is_batch_size and len(self.sizes) <= _MOST_MEASURED:
            return list(self.sizes)
        factor = _BATCH_FACTOR if self._is_batch_size else _OTHER_FACTOR
        last = self.sizes[-1]
        chosen = [self.sizes[0]]
        for size in self.sizes:
            # The end is measured too, so skip a size that is close to it.
            is_next = size >= factor * chosen[-1] and size * math.sqrt(factor) <= last
            if is_next:
                chosen.append(size)
        return sorted({*chosen, last})

    def _why_not(self, size: int) -> str | None:
        """Return why a size is not measured, judged by the nearest measured one."""
        below = [known for known in self._times if known < size]
        nearest = max(below) if below else min(self._times)
        growth = max(1.0, size / nearest)
        if not self._is_batch_size:
            growth **= 2  # a width enters the work twice
        return why_not_measured(
            self._times[nearest].value_ns * growth,
            self._peaks_bytes[nearest] * growth,
            longest_step_ns=LONGEST_STEP_NS if self._is_batch_size else _LONGEST_OTHER_NS,
        )


def _near_crossing(ratios: Mapping[int, LogRatio]) -> list[int]:
    """Return the sizes around the last crossing, the nearest first.

    Without a crossing, it is the size at which the curves are closest, if they may touch there.
    """
    nearest = sorted(ratios, key=lambda size: abs(ratios[size].value))
    for size, larger in reversed([*itertools.pairwise(ratios)]):
        if (ratios[size].value > 0) is not (ratios[larger].value > 0):
            return [one for one in nearest if one in (size, larger)]
    return [size for size in nearest[:1] if not (ratios[size].is_won or ratios[size].is_lost)]
