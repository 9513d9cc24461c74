"""Charts of a report: step times of its devices along its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from breakeven.report.charts.model import (
    Chart,
    ChartAxis,
    ChartPoint,
    ChartSeries,
    CrossoverMark,
    PublishedMark,
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
    Curve,
    DeviceKind,
    DeviceResult,
    SweepAxis,
    SweepPoint,
    SweepReport,
    SystemReport,
    SystemsReport,
)

_AXIS_WORDS = {NUM_PARAMETERS: "parameters", "num_devices": "number of GPUs"}
PUBLISHED_LABEL = "published"
_STEP_LABEL = "time of one step"
# Round counts from here on are written with a prefix: 10k, 100k, 1M.
_LONG_COUNT = 10_000
_LEAST_NS = 1.0

Held = dict[str, AxisValue]


def report_charts(
    report: CheckReport | SweepReport | SystemReport | SystemsReport,
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
        case SystemReport():
            return tuple(chart for sweep in report.sweeps for chart in _sweep_charts(sweep))
        case SystemsReport():
            return tuple(chart for system in report.systems for chart in report_charts(system))


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
    if any(curve.points for curve in report.curves):
        yield _curve_chart(report)
    elif report.results:
        yield _result_chart(report)


def _curve_chart(report: CheckReport) -> Chart:
    curves = [curve for curve in report.curves if curve.points]
    sizes = sorted({point.size for curve in curves for point in curve.points})
    row_of = {size: row for row, size in enumerate(sizes)}
    series = [(curve.device, curve.kind, tuple(_curve_points(curve, row_of))) for curve in curves]
    crossover = report.crossover
    found = [("", crossover)] if isinstance(crossover, Crossover) else []
    word = axis_word(curves[0].axis)
    return _chart(
        title=f"Step time along the {word}",
        note="",
        x=size_axis(word, sizes, _tick_text),
        x_labels=tuple(f"{size:,}" for size in sizes),
        series=series,
        crossovers=found,
    )


def _curve_points(curve: Curve, row_of: Mapping[int, int]) -> Iterator[ChartPoint]:
    for point in sorted(curve.points, key=lambda point: point.size):
        yield ChartPoint(
            x=float(point.size),
            row=row_of[point.size],
            step_ns=point.step_ns,
            low_ns=point.low_ns,
            high_ns=point.high_ns,
            source=point.source,
        )


def _result_chart(report: CheckReport) -> Chart:
    results = sorted((*report.results, *report.absent_cpus), key=lambda result: result.step_ns)
    names = [printable(result.device, 60) for result in results]
    series = [
        (result.device, result.kind, (_time_point(result, float(row), row),))
        for row, result in enumerate(results)
    ]
    return _chart(
        title="Step time by device",
        note="",
        x=category_axis("device", names),
        x_labels=tuple(names),
        series=series,
        crossovers=(),
        is_by_device=True,
    )


def _time_point(timed: DeviceResult | SweepPoint, x: float, row: int) -> ChartPoint:
    return ChartPoint(
        x=x,
        row=row,
        step_ns=timed.step_ns,
        low_ns=timed.low_ns,
        high_ns=timed.high_ns,
        source=timed.source,
        is_too_big=timed.fits is False,
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
        yield _axis_chart(report, first, held, points)
        if _is_about_parameters(report, held) and _parameters_grow(points, first.name):
            yield _parameter_chart(report, held, points)


def _agree(one: Mapping[str, AxisValue], other: Mapping[str, AxisValue]) -> bool:
    """Return whether no setting that both have differs."""
    return all(one[name] == value for name, value in other.items() if name in one)


def _is_about_parameters(report: SweepReport, held: Held) -> bool:
    return any(published.axis == NUM_PARAMETERS for published in report.published) or any(
        crossover.outcome.axis == NUM_PARAMETERS and _agree(crossover.held, held)
        for crossover in report.crossovers
    )


def _parameters_grow(points: Sequence[SweepPoint], axis: str) -> bool:
    """Return whether each value of the axis has a number of parameters of its own."""
    pairs = {(point.settings[axis], point.num_parameters) for point in points}
    numbers = {number for _, number in pairs}
    return 0 not in numbers and len(pairs) == len(numbers) > 1


def _axis_chart(
    report: SweepReport, axis: SweepAxis, held: Held, points: Sequence[SweepPoint]
) -> Chart:
    used = {point.settings[axis.name] for point in points}
    numbers = [value for value in axis.values if value in used and not isinstance(value, str)]
    word = axis_word(axis.name)
    published = _published(report, axis.name)
    if len(numbers) == len(used):
        values: list[AxisValue] = sorted(numbers)
        x = size_axis(word, [*numbers, *(mark.x for mark in published)], _tick_text)
        x_of: dict[AxisValue, float] = {value: float(value) for value in numbers}
    else:
        values = [value for value in axis.values if value in used]
        x = category_axis(word, [value_text(value) for value in values])
        x_of = {value: float(row) for row, value in enumerate(values)}
    row_of = {value: row for row, value in enumerate(values)}

    def place(point: SweepPoint) -> tuple[float, int]:
        value = point.settings[axis.name]
        return x_of[value], row_of[value]

    return _chart(
        title=f"Step time along the {word}",
        note=_note(axis, held),
        x=x,
        x_labels=tuple(value_text(value) for value in values),
        series=tuple(_sweep_series(points, report.axes, place)),
        crossovers=_found(report, axis.name, held),
        published=published,
    )


def _note(axis: SweepAxis, held: Held) -> str:
    if axis.role is not AxisRole.NUM_DEVICES:
        return settings_text(held)
    return "; ".join(filter(None, (settings_text(held), "each GPU adds a batch to the step")))


def _parameter_chart(report: SweepReport, held: Held, points: Sequence[SweepPoint]) -> Chart:
    numbers = sorted({point.num_parameters for point in points})
    published = _published(report, NUM_PARAMETERS)
    sizes = [*numbers, *(mark.x for mark in published)]
    row_of = {number: row for row, number in enumerate(numbers)}
    return _chart(
        title="Step time along the number of parameters",
        note=settings_text(held),
        x=size_axis(axis_word(NUM_PARAMETERS), sizes, _tick_text),
        x_labels=tuple(f"{number:,}" for number in numbers),
        series=tuple(
            _sweep_series(
                points,
                report.axes,
                lambda point: (float(point.num_parameters), row_of[point.num_parameters]),
            )
        ),
        crossovers=_found(report, NUM_PARAMETERS, held),
        published=published,
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
        curves.setdefault(num_threads, {}).setdefault(x, _time_point(point, x, row))
    for (device, kind), curves in by_device.items():
        distinct = {num: tuple(curve[x] for x in sorted(curve)) for num, curve in curves.items()}
        if len(set(distinct.values())) == 1:
            yield device, kind, next(iter(distinct.values()))
            continue
        for num_threads, chart_points in distinct.items():
            suffix = "" if num_threads is None else f", threads {value_text(num_threads)}"
            yield device + suffix, kind, chart_points


def _found(report: SweepReport, axis: str, held: Held) -> list[tuple[str, Crossover]]:
    """Return crossovers along an axis, with what tells them from others of the same chart."""
    return [
        (settings_text({k: v for k, v in found.held.items() if k not in held}), found.outcome)
        for found in report.crossovers
        if isinstance(found.outcome, Crossover)
        and found.outcome.axis == axis
        and _agree(found.held, held)
    ]


def _published(report: SweepReport, axis: str) -> tuple[PublishedMark, ...]:
    return tuple(
        PublishedMark(
            label=printable(mark.label, 120),
            x=mark.size,
            step_ns=mark.step_ns,
            where=f"{axis_word(axis)} {format_count(mark.size)}",
            source=printable(mark.source),
        )
        for mark in report.published
        if mark.axis == axis
    )


def _chart(
    *,
    title: str,
    note: str,
    x: ChartAxis,
    x_labels: tuple[str, ...],
    series: Sequence[_Series],
    crossovers: Sequence[tuple[str, Crossover]],
    published: tuple[PublishedMark, ...] = (),
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
    every += [mark.step_ns for mark in published if mark.step_ns]
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
        published=published,
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
