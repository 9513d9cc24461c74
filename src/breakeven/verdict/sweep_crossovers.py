"""Curves through the points of a sweep, and their crossovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from breakeven.verdict.crossover import find_crossover, rescaled
from breakeven.verdict.report import Crossover, Curve, CurvePoint, NoCrossover
from breakeven.verdict.results import DeviceKind
from breakeven.verdict.sweep_report import (
    AxisRole,
    AxisValue,
    SweepAxis,
    SweepCrossover,
    SweepCurve,
    SweepPoint,
)

NUM_PARAMETERS = "num_parameters"
"""What a curve is along where it is along no axis, but along the size of the model."""

_Held = tuple[tuple[str, AxisValue], ...]


def sweep_curves(
    points: Sequence[SweepPoint], axes: Sequence[SweepAxis], axis_name: str
) -> tuple[SweepCurve, ...]:
    """Return the curve of each device along one axis, all other axes held.

    CPU threads do not change a GPU's time, and the number of GPUs does not change a CPU's. A curve
    that does not depend on an axis occurs once, without that axis in ``held``.

    Args:
        points: Points of a sweep.
        axes: Its axes.
        axis_name: An axis of positive whole numbers, or ``num_parameters``. The latter has curves
            only if the number of parameters differs at all values of an axis.

    Raises:
        ValueError: There is no such axis, or not all of its values are positive whole numbers.
    """
    along = _axis_along(points, axes, axis_name)
    if along is None:
        return ()
    grouped: dict[tuple[str, DeviceKind, _Held], dict[int, CurvePoint]] = {}
    processors: dict[str, str] = {}
    for point in points:
        size = point.num_parameters if axis_name == NUM_PARAMETERS else point.settings[along.name]
        assert isinstance(size, int)
        held = tuple(
            (axis.name, point.settings[axis.name])
            for axis in axes
            if axis is not along and not _is_irrelevant(axis, point.kind)
        )
        device = point.hardware if along.role is AxisRole.THREADS else point.device
        processors[device] = point.processor
        curve = grouped.setdefault((device, point.kind, held), {})
        curve.setdefault(size, _curve_point(size, point))
    return tuple(
        SweepCurve(
            device=device,
            kind=kind,
            axis=axis_name,
            held=dict(held),
            points=tuple(curve[size] for size in sorted(curve)),
            processor=processors[device],
        )
        for (device, kind, held), curve in grouped.items()
    )


def find_sweep_crossovers(
    points: Sequence[SweepPoint], axes: Sequence[SweepAxis]
) -> tuple[SweepCrossover, ...]:
    """Return the size from which each GPU wins, along every axis of positive whole numbers.

    Each GPU is compared with the CPU at its best number of threads at each size. A GPU is no
    candidate at sizes that exceed its memory. If several GPUs share a step, each with its own
    batch, times for equal numbers of samples are compared. Threads are not searched: more of them
    only help the CPU. If an argument changes the number of parameters at each of its values, that
    number is an axis too.

    Args:
        points: Points of a sweep.
        axes: Its axes.
    """
    fitting = [point for point in points if point.fits is not False]
    found: list[SweepCrossover] = []
    for name in _searched_axes(points, axes):
        along = _axis_along(points, axes, name)
        assert along is not None
        gpus = [c for c in sweep_curves(points, axes, name) if c.kind is DeviceKind.GPU]
        curves = sweep_curves(fitting, axes, name)
        fitting_gpus = {_key(c): c for c in curves if c.kind is DeviceKind.GPU}
        cpus = [c for c in curves if c.kind is DeviceKind.CPU]
        for gpu in gpus:
            # If both curves depend on an axis, both hold it at the same value.
            own = [
                cpu
                for cpu in cpus
                if all(cpu.held.get(name, value) == value for name, value in gpu.held.items())
            ]
            if not own:
                continue
            candidate = fitting_gpus.get(_key(gpu))
            cpu = _best(own)
            if candidate is None:
                outcome = NoCrossover(
                    none_because=f"The step does not fit {gpu.device} at any size searched.",
                    axis=gpu.axis,
                    searched=(gpu.points[0].size, gpu.points[-1].size),
                )
            else:
                shared = (a.name for a in axes if a.role is AxisRole.NUM_DEVICES)
                held = [gpu.held[name] for name in shared if name in gpu.held]
                outcome = _outcome(cpu, candidate, along, int(held[0]) if held else 1)
            found.append(
                SweepCrossover(device=gpu.device, cpu=cpu.device, held=gpu.held, outcome=outcome)
            )
    return tuple(found)


def _searched_axes(points: Sequence[SweepPoint], axes: Sequence[SweepAxis]) -> list[str]:
    names = [
        axis.name
        for axis in axes
        if axis.is_whole and len(axis.values) > 1 and axis.role is not AxisRole.THREADS
    ]
    if _growing_axis(points, axes) is not None:
        names.append(NUM_PARAMETERS)
    return names


def _axis_along(
    points: Sequence[SweepPoint], axes: Sequence[SweepAxis], name: str
) -> SweepAxis | None:
    """Return the axis that varies along curves; None if there is none."""
    if name == NUM_PARAMETERS and all(axis.name != name for axis in axes):
        return _growing_axis(points, axes)
    axis = next((axis for axis in axes if axis.name == name), None)
    if axis is None or not axis.is_whole:
        raise ValueError(f"there is no axis {name} of positive whole numbers")
    return axis


def _growing_axis(points: Sequence[SweepPoint], axes: Sequence[SweepAxis]) -> SweepAxis | None:
    """Return the first axis whose values all give different model sizes."""
    for axis in axes:
        if axis.role is not AxisRole.ARGUMENT or len(axis.values) < 2:
            continue
        sizes: dict[_Held, dict[AxisValue, int]] = {}
        for point in points:
            held = tuple(sorted((n, v) for n, v in point.settings.items() if n != axis.name))
            sizes.setdefault(held, {})[point.settings[axis.name]] = point.num_parameters
        if sizes and all(
            len(own) > 1 and len(set(own.values())) == len(own) and min(own.values()) > 0
            for own in sizes.values()
        ):
            return axis
    return None


def _is_irrelevant(axis: SweepAxis, kind: DeviceKind) -> bool:
    """Return whether an axis does not affect devices of a kind."""
    foreign = AxisRole.THREADS if kind is DeviceKind.GPU else AxisRole.NUM_DEVICES
    return axis.role is foreign


def _curve_point(size: int, point: SweepPoint) -> CurvePoint:
    return CurvePoint(
        size=size,
        step_ns=point.step_ns,
        low_ns=point.low_ns,
        high_ns=point.high_ns,
        source=point.source,
    )


def _key(curve: SweepCurve) -> tuple[str, _Held]:
    return curve.device, tuple(curve.held.items())


def _best(curves: Sequence[SweepCurve]) -> Curve:
    """Return the fastest CPU at each size: on a CPU, the user can choose the threads."""
    fastest: dict[int, tuple[CurvePoint, SweepCurve]] = {}
    for curve in curves:
        for point in curve.points:
            if point.size not in fastest or point.step_ns < fastest[point.size][0].step_ns:
                fastest[point.size] = (point, curve)
    (_, first), *others = fastest.values()
    name = first.device
    if any(curve.device != name for _, curve in others):
        name = f"{first.processor or name} (best number of threads)"
    points = tuple(fastest[size][0] for size in sorted(fastest))
    return Curve(device=name, kind=DeviceKind.CPU, axis=curves[0].axis, points=points)


def _outcome(
    cpu: Curve, gpu: SweepCurve, along: SweepAxis, num_devices: int
) -> Crossover | NoCrossover:
    # The CPU needs n steps for the samples that n GPUs process in one.
    if along.role is AxisRole.NUM_DEVICES:
        return find_crossover(_scaled(cpu, lambda size: size), gpu)
    if num_devices > 1:
        cpu = _scaled(cpu, lambda _: num_devices)
    return find_crossover(cpu, gpu)


def _scaled(curve: Curve, factor: Callable[[int], float]) -> Curve:
    points = (rescaled(point, factor=factor(point.size)) for point in curve.points)
    return replace(curve, points=tuple(points))
