"""The points of a grid: their settings, which axes figures depend on, and figures as points."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from breakeven.progress import Progress
from breakeven.trace import StepTrace
from breakeven.verdict import AxisRole, AxisValue, DeviceResult, SweepAxis, SweepPoint

Settings = dict[str, AxisValue]
# Settings as a key: the values in the order of some axes.
Values = tuple[AxisValue, ...]

# Neither changes what the step does: threads are the CPU's, and every GPU does the same step.
_NOT_TRACED = (AxisRole.THREADS, AxisRole.NUM_DEVICES)


def grid_of(axes: Sequence[SweepAxis]) -> list[Settings]:
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
        step: The step on one device; where it does not tell its samples, an axis may by its name.
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
