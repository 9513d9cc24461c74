"""The points of a grid, and which of its axes each kind of figure depends on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from breakeven.verdict import AxisRole, AxisValue, SweepAxis

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
