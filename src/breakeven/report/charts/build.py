"""Charts of a report: step times of its devices along its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from breakeven.report.charts.model import (
    Chart,
    ChartAxis,
    ChartPoint,
    ChartSeries,
    CrossoverMark,
    category_axis,
    size_axis,
    value_axis,
)
from breakeven.report.text import duration_with_interval, printable
from breakeven.units import format_count, format_digits, format_duration
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisRole,
    AxisValue,
    CheckReport,
    Crossover,
    CurvePoint,
    DeviceKind,
    DeviceResult,
    SweepAxis,
    SweepPoint,
    SweepReport,
)

_AXIS_WORDS = {NUM_PARAMETERS: "parameters", "num_devices": "number of GPUs"}
_STEP_LABEL = "time of one step"
# Round counts from here on are written with a prefix: 10k, 100k, 1M.
_LONG_COUNT = 10_000
_LEAST_NS = 1.0

Held = dict[str, AxisValue]


def report_charts(
    report: CheckReport | SweepReport,
) -> tuple[Chart, ...]:
    """Return the charts of a report; none where it has no step times.

    A check has one: along its batch sizes, or else of its devices side by side. A sweep has one
    along its first axis for each setting of the others, CPU threads aside, which share a chart;
    and the same along the number of parameters where that grows and something is known of it.
    """
    match report:
        case CheckReport():
            return tuple(_check_charts(report))
        case SweepReport():
            return tuple(_sweep_charts(report))


def axis_word(name: str) -> str:
    """Return the name of an axis as a person writes it: ``batch size``."""
    if name in _AXIS_WORDS:
        return _AXIS_WORDS[name]
    return printable(name.replace("_", " "), 60)


def settings_text(settings: Mapping[str, AxisValue]) -> str:
    """Return ``batch size 64, threads 2``."""
    return ", ".join(f"{axis_word(name)} {value_text(value)}" for name, value in settings.items())


def value_text(value: AxisValue | float) -> str:
    """Return a value of an axis for a tick, a table or a sentence."""
    if isinstance(value, str):
        return printable(value, 60)
    return f"{value:,}" if isinstance(value, int) else format_digits(value, 4)


def _check_charts(report: CheckReport) -> Iterator[Chart]:
    curves = [curve for curve in report.curves if curve.points]
    if curves:
        sizes = sorted({point.size for curve in curves for point in curve.points})
        row_of = {size: row for row, size in enumerate(sizes)}
        word, crossover = axis_word(curves[0].axis), report.crossover
        yield _chart(
            title=f"Step time along the {word}",
            x=size_axis(word, sizes, _tick_text),
            x_labels=tuple(f"{size:,}" for size in sizes),
            series=[
                (
                    curve.device,
                    curve.kind,
                    tuple(
                        _point(point, float(point.size), row_of[point.size])
                        for point in sorted(curve.points, key=lambda point: point.size)
                    ),
                )
                for curve in curves
            ],
            crossovers=[("", crossover)] if isinstance(crossover, Crossover) else [],
        )
    elif report.results:
        results = sorted((*report.results, *report.absent_cpus), key=lambda one: one.step_ns)
        names = [printable(result.device, 60) for result in results]
        yield _chart(
            title="Step time by device",
            x=category_axis("device", names),
            x_labels=tuple(names),
            series=[
                (result.device, result.kind, (_point(result, float(row), row),))
                for row, result in enumerate(results)
            ],
            is_by_device=True,
        )


def _point(timed: DeviceResult | SweepPoint | CurvePoint, x: float, row: int) -> ChartPoint:
    return ChartPoint(
        x=x,
        row=row,
        step_ns=timed.step_ns,
        low_ns=timed.low_ns,
        high_ns=timed.high_ns,
        source=timed.source,
        is_too_big=not isinstance(timed, CurvePoint) and timed.fits is False,
    )


def _sweep_charts(report: SweepReport) -> Iterator[Chart]:
    if not report.axes:
        return
    first, *others = report.axes
    held_axes = [axis for axis in others if axis.role is not AxisRole.THREADS]
    groups: dict[tuple[AxisValue, ...], list[SweepPoint]] = {}
    for point in report.points:
        if all(point.settings.get(axis.name) in axis.values for axis in report.axes):
            key = tuple(point.settings[axis.name] for axis in held_axes)
            groups.setdefault(key, []).append(point)
    for values, points in groups.items():
        held = dict(zip((axis.name for axis in held_axes), values, strict=True))
        note = settings_text(held)
        if first.role is AxisRole.NUM_DEVICES:
            note = "; ".join(filter(None, (note, "each GPU adds a batch to the step")))
        used = {point.settings[first.name] for point in points}
        along = [value for value in first.values if value in used]
        if not any(isinstance(value, str) for value in along):
            along = sorted(along, key=float)
        places = {id(point): along.index(point.settings[first.name]) for point in points}
        yield _sweep_chart(report, first.name, held, note, points, along, places)
        if _is_about_parameters(report, held) and _parameters_grow(points, first.name):
            numbers = sorted({point.num_parameters for point in points})
            places = {id(point): numbers.index(point.num_parameters) for point in points}
            note = settings_text(held)
            yield _sweep_chart(report, NUM_PARAMETERS, held, note, points, numbers, places)


def _agree(one: Mapping[str, AxisValue], other: Mapping[str, AxisValue]) -> bool:
    """Return whether no setting that both have differs."""
    return all(one[name] == value for name, value in other.items() if name in one)


def _is_about_parameters(report: SweepReport, held: Held) -> bool:
    return any(
        crossover.outcome.axis == NUM_PARAMETERS and _agree(crossover.held, held)
        for crossover in report.crossovers
    )


def _parameters_grow(points: Sequence[SweepPoint], axis: str) -> bool:
    """Return whether each value of the axis has a number of parameters of its own."""
    pairs = {(point.settings[axis], point.num_parameters) for point in points}
    numbers = {number for _, number in pairs}
    return 0 not in numbers and len(pairs) == len(numbers) > 1


def _sweep_chart(
    report: SweepReport,
    axis: str,
    held: Held,
    note: str,
    points: Sequence[SweepPoint],
    along: Sequence[AxisValue],
    places: Mapping[int, int],
) -> Chart:
    """Return the chart along one axis.

    Args:
        report: The sweep.
        axis: Along which.
        held: The other axes.
        note: What is held, in words.
        points: With these settings.
        along: Values of the axis, ascending if they are numbers.
        places: The number of each point's value among these, by the point's identity.
    """
    word = axis_word(axis)
    numbers = [float(value) for value in along if not isinstance(value, str)]
    if len(numbers) == len(along):
        x = size_axis(word, numbers, _tick_text)
    else:
        numbers = [float(row) for row in range(len(along))]
        x = category_axis(word, [value_text(value) for value in along])
    return _chart(
        title=f"Step time along the {'number of parameters' if axis == NUM_PARAMETERS else word}",
        note=note,
        x=x,
        x_labels=tuple(value_text(value) for value in along),
        series=tuple(
            _sweep_series(
                points, report.axes, lambda point: (numbers[places[id(point)]], places[id(point)])
            )
        ),
        # With what tells crossovers from others of the same chart.
        crossovers=[
            (settings_text({k: v for k, v in one.held.items() if k not in held}), one.outcome)
            for one in report.crossovers
            if isinstance(one.outcome, Crossover)
            and one.outcome.axis == axis
            and _agree(one.held, held)
        ],
    )


_Series = tuple[str, DeviceKind, tuple[ChartPoint, ...]]


def _sweep_series(
    points: Iterable[SweepPoint],
    axes: Sequence[SweepAxis],
    place: Callable[[SweepPoint], tuple[float, int]],
) -> Iterator[_Series]:
    """Yield each device's points; a CPU's once for each number of threads.

    A prediction of a GPU does not depend on the CPU's threads: it is drawn once.
    """
    threads = next((axis.name for axis in axes[1:] if axis.role is AxisRole.THREADS), None)
    is_along_threads = axes[0].role is AxisRole.THREADS
    by_device: dict[tuple[str, DeviceKind], dict[AxisValue | None, dict[float, ChartPoint]]] = {}
    for point in points:
        num_threads = None if threads is None else point.settings.get(threads)
        x, row = place(point)
        # Along threads the CPU is one device all the same.
        device = point.hardware if is_along_threads else point.device
        curves = by_device.setdefault((device, point.kind), {})
        curves.setdefault(num_threads, {}).setdefault(x, _point(point, x, row))
    for (device, kind), curves in by_device.items():
        distinct = {num: tuple(curve[x] for x in sorted(curve)) for num, curve in curves.items()}
        if len(set(distinct.values())) == 1:
            yield device, kind, next(iter(distinct.values()))
            continue
        for num_threads, chart_points in distinct.items():
            suffix = "" if num_threads is None else f", threads {value_text(num_threads)}"
            yield device + suffix, kind, chart_points


def _chart(
    *,
    title: str,
    note: str = "",
    x: ChartAxis,
    x_labels: tuple[str, ...],
    series: Sequence[_Series],
    crossovers: Sequence[tuple[str, Crossover]] = (),
    is_by_device: bool = False,
) -> Chart:
    ordered = sorted(series, key=lambda named: named[1] is not DeviceKind.CPU)
    style_of = {name: number for number, (name, _, _) in enumerate(ordered)}
    every = [
        max(value, _LEAST_NS)
        for _, _, points in series
        for point in points
        for value in (point.low_ns, point.high_ns)
    ]
    return Chart(
        title=title,
        note=note,
        x=x,
        y=value_axis(_STEP_LABEL, every, _duration_tick),
        x_labels=x_labels,
        series=tuple(
            ChartSeries(name=printable(name, 60), kind=kind, style=style_of[name], points=points)
            for name, kind, points in ordered
        ),
        crossovers=tuple(
            _crossover_mark(crossover, remark, style_of) for remark, crossover in crossovers
        ),
        is_by_device=is_by_device,
    )


def _crossover_mark(
    crossover: Crossover, remark: str, style_of: Mapping[str, int]
) -> CrossoverMark:
    name = printable(crossover.device, 60) + (f" ({remark})" if remark else "")
    return CrossoverMark(
        name=name,
        style=style_of.get(crossover.device, 0),
        x=float(crossover.value),
        low=float(crossover.low),
        high=None if crossover.high is None else float(crossover.high),
        label=f"{name} faster from {crossover.value:,} ({crossover_interval(crossover)})",
    )


def crossover_interval(crossover: Crossover) -> str:
    """Return ``410–1,300``, or ``410 or more`` where the end was not searched."""
    if crossover.high is None:
        return f"{crossover.low:,} or more"
    return f"{crossover.low:,}–{crossover.high:,}"


def point_text(point: ChartPoint) -> str:
    """Return a point's step time with its interval."""
    text = duration_with_interval(point.step_ns, point.low_ns, point.high_ns)
    return f"{text}, too big" if point.is_too_big else text


def _tick_text(value: float) -> str:
    if abs(value) >= _LONG_COUNT and value % 1_000 == 0:
        return format_count(value)
    return value_text(int(value)) if float(value).is_integer() else format_digits(value, 4)


def _duration_tick(value: float) -> str:
    return "0" if value == 0 else format_duration(value)
