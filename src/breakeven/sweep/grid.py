"""The points of a grid: their settings, and how the script is run at one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from breakeven.capture import (
    Launcher,
    LoaderUse,
    PlainRun,
    RunFailure,
    RunRequest,
    Target,
    TracedRun,
    script_error,
)
from breakeven.errors import BreakevenError, ScriptError
from breakeven.progress import Progress
from breakeven.sweep.axes import fill_arguments
from breakeven.trace import Configuration, StepTrace
from breakeven.verdict import AxisRole, AxisValue, DeviceResult, SweepAxis, SweepPoint

PointSettings = dict[str, AxisValue]
# Settings as a key: the values in the order of some axes.
Values = tuple[AxisValue, ...]

# Neither changes what the step does: threads are the CPU's, and every GPU does the same step.
_NOT_TRACED = (AxisRole.THREADS, AxisRole.NUM_DEVICES)


def grid_of(axes: Sequence[SweepAxis]) -> list[PointSettings]:
    """Return the settings of every point, the last axis varying fastest."""
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def traced_axes(axes: Sequence[SweepAxis]) -> tuple[SweepAxis, ...]:
    """Return the axes on which the step itself depends."""
    return tuple(axis for axis in axes if axis.role not in _NOT_TRACED)


def measured_axes(axes: Sequence[SweepAxis]) -> tuple[SweepAxis, ...]:
    """Return the axes on which the time on a CPU depends."""
    return tuple(axis for axis in axes if axis.role is not AxisRole.NUM_DEVICES)


def values_at(settings: Mapping[str, AxisValue], axes: Iterable[SweepAxis]) -> Values:
    """Return the values of some axes, as a key."""
    return tuple(settings[axis.name] for axis in axes)


def axis_of(axes: Iterable[SweepAxis], role: AxisRole) -> SweepAxis | None:
    """Return the axis of a role that only one can have; None where it is not swept."""
    return next((axis for axis in axes if axis.role is role), None)


def describe(settings: Mapping[str, AxisValue]) -> str:
    """Return settings for a person."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def point_at(
    settings: Mapping[str, AxisValue],
    step: StepTrace,
    result: DeviceResult,
    *,
    processor: str = "",
    num_devices: int = 1,
) -> SweepPoint:
    """Return a result as a point.

    Args:
        settings: Value of every axis.
        step: The step on one device; an axis may name its samples where it does not.
        result: Its time on the device.
        processor: The CPU's name, where that of the result says its threads.
        num_devices: How many devices share it, each with the batch of the step.
    """
    named = settings.get("batch_size")
    batch_size = step.batch_size or (named if isinstance(named, int) else None)
    return SweepPoint(
        settings=dict(settings),
        device=result.device,
        kind=result.kind,
        source=result.source,
        step_ns=result.step_ns,
        low_ns=result.low_ns,
        high_ns=result.high_ns,
        batch_size=batch_size and batch_size * num_devices,
        num_parameters=step.num_parameters,
        bound=result.bound,
        fits=result.fits,
        num_samples=result.num_samples,
        caveats=result.caveats,
        num_threads=result.num_threads,
        processor=processor,
    )


class SweepProgress(Progress, Protocol):
    """Receives the stages of a sweep, and the points of its grid as they are done."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Take what is known of points of the grid from now on.

        Args:
            points: All devices at one or more points of the grid that are done; none where the
                script failed there.
            num_done: Points of the grid that are done, these included.
            num_points: Points of the whole grid.
        """
        ...


class GridRuns:
    """Knows how settings enter the script, and records its steps.

    Args:
        launcher: Makes the processes that record.
        target: The script, with no arguments.
        arguments: Its arguments, with ``{NAME}`` where an axis enters.
        axes: The axes with their roles.
        time_limit_s: Limit of each run.
        progress: Progress callback, of stages and steps.
    """

    def __init__(
        self, launcher: Launcher, target: Target, arguments: Sequence[str],
        axes: Sequence[SweepAxis], time_limit_s: float, progress: Progress,
    ) -> None:  # fmt: skip
        self._launcher = launcher
        self._target = target
        self._arguments = tuple(arguments)
        self._batch_axis = axis_of(axes, AxisRole.BATCH_SIZE)
        self._threads_axis = axis_of(axes, AxisRole.THREADS)
        self._time_limit_s = time_limit_s
        self._progress = progress
        # A script that never uses a GPU is recorded as if it were moved to one.
        self._is_moved = False
        # As it was recorded last: where its steps end, and which do not count.
        self._backwards_per_step = 0
        self._num_host_steps = 0

    def target_at(self, settings: Mapping[str, AxisValue]) -> Target:
        """Return the script with its arguments at these settings."""
        filled = fill_arguments(self._arguments, settings)
        return replace(self._target, raw_arguments=tuple(map(os.fsencode, filled)))

    def plain_request(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None, budget_s: float
    ) -> RunRequest:
        """Return how the step is timed on a CPU.

        Args:
            settings: Value of every axis of the arguments; batch size and threads are the
                script's own where they are not among them.
            loader: What the script's own loader does, where its batch size is to be changed.
            budget_s: How long to take samples.
        """
        threads = settings.get(self._threads_axis.name, 0) if self._threads_axis else 0
        old, new = self._batch_change(settings, loader)
        return RunRequest(
            target=self.target_at(settings),
            is_traced=False,
            time_limit_s=self._time_limit_s,
            budget_s=budget_s,
            loader_batch_size=old,
            new_batch_size=new,
            configuration=Configuration(num_threads=int(threads)),
            backwards_per_step=self._backwards_per_step,
            num_skipped_steps=self._num_host_steps,
            tries_threads=self._threads_axis is None,
        )

    def trace(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None = None
    ) -> TracedRun:
        """Record the step.

        Args:
            settings: As for `plain_request`.
            loader: As for `plain_request`.

        Raises:
            BreakevenError: The script gave no step.
        """
        at = f" at {describe(settings)}" if settings else ""
        self._progress.begin(f"recording a step{at}")
        old, new = self._batch_change(settings, loader)
        request = RunRequest(
            target=self.target_at(settings),
            is_traced=True,
            is_moved=self._is_moved,
            time_limit_s=self._time_limit_s,
            loader_batch_size=old,
            new_batch_size=new,
        )
        answer = self._run(request)
        if isinstance(answer, TracedRun) and not (answer.trace.uses_device or self._is_moved):
            self._is_moved = True
            answer = self._run(replace(request, is_moved=True))
        if not isinstance(answer, TracedRun):
            assert isinstance(answer, RunFailure), "asked for a trace"
            output = self._launcher.output
            raise script_error(answer, request.target, output, writes=self._launcher.writes)
        self._backwards_per_step = answer.backwards_per_step
        self._num_host_steps = answer.num_host_steps
        if new and (answer.loader is None or answer.loader.batch_size != new):
            raise ScriptError(
                f"{self._target.label} does not load batches of {new} when its DataLoader is "
                "asked to",
                hint="give the script an option for its batch size and sweep that: "
                "--over batch_size=VALUES -- --batch-size {batch_size}",
            )
        return answer

    def what_ended(self, settings: Mapping[str, AxisValue], failure: RunFailure) -> str:
        """Return what ended a run at one point of many, where no other run is made to learn why."""
        return script_error(failure, self.target_at(settings), "").message

    def error(
        self, settings: Mapping[str, AxisValue], failure: RunFailure, output: str
    ) -> BreakevenError:
        """Return the error that says why the script, as it is, gave no answer."""
        return script_error(failure, self.target_at(settings), output, writes=self._launcher.writes)

    def _batch_change(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None
    ) -> tuple[int, int]:
        """Return the batch size that is to be changed, and into which; zeros for no change."""
        if self._batch_axis is None or loader is None or self._batch_axis.name not in settings:
            return 0, 0
        wanted = int(settings[self._batch_axis.name])
        return (0, 0) if wanted == loader.batch_size else (loader.batch_size, wanted)

    def _run(self, request: RunRequest) -> PlainRun | TracedRun | RunFailure:
        return self._launcher.run(request, self._progress.detail)
