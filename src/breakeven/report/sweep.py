"""The document of a sweep: the sizes from which GPUs win, the times behind them, and failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from breakeven.errors import Caveat
from breakeven.report.answer_text import SOURCE_MARKS, sample_legend
from breakeven.report.chart import (
    Chart,
    Scale,
    axis_word,
    crossover_interval,
    settings_text,
    value_text,
)
from breakeven.report.document import (
    TOO_BIG,
    Cell,
    Column,
    Document,
    Fact,
    Line,
    Medium,
    Phrase,
    Section,
    Table,
    evenly_spread,
)
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    host_facts,
    side_effect_facts,
)
from breakeven.report.speed_chart import TimedLine, chosen_gpus, is_timed, speed_chart
from breakeven.report.text import listed, plural, printable, shorten
from breakeven.timing import Source
from breakeven.units import format_duration
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisRole,
    AxisValue,
    Crossover,
    DeviceKind,
    NoCrossover,
    SweepAxis,
    SweepCrossover,
    SweepPoint,
    SweepReport,
    Timed,
)

_MAX_BLOCKS = 3
_MAX_CHARTS = 24
# Maximum numbers of sizes of a curve, and of settings of crossovers, in a terminal.
_MAX_ROWS = 20
_MAX_CROSSOVERS = 12
_MAX_FAILURES = 8
_MAX_SETTINGS = 4
# If an axis has more values, show only the first and the last.
_MAX_VALUES = 6
_MAX_LABEL_CHARACTERS = 24
# Axes that count something: "2 threads", but "batch size 64".
_COUNTED: Mapping[str, str] = {
    NUM_PARAMETERS: "parameters",
    "threads": "threads",
    "num_devices": "GPUs",
}
_NEVER = {DeviceKind.CPU: "never", DeviceKind.GPU: "always", None: "not known"}


def sweep_document(report: SweepReport) -> Document:
    """Return the document of a sweep."""
    words = " and ".join(axis_word(axis.name) for axis in report.axes)
    return Document(
        title=f"When does a GPU pay off for {printable(report.target, 120)}, by {words}?",
        answers=(Line(headline(report), "bold"),),
        warnings=sweep_warnings(report),
        facts=tuple(sweep_facts(report)),
        blocks=tuple(sweep_sections(report)),
        charts=tuple(chart for chart in sweep_charts(report) if not chart.is_empty),
        command=report.command,
    )


def sweep_warnings(report: SweepReport) -> tuple[str, ...]:
    """Return the warnings that may reverse the answer."""
    return busy_warnings(caveat for held in (*report.points, report) for caveat in held.caveats)


def sweep_facts(report: SweepReport) -> Iterator[Fact]:
    """Yield the script, the axes, and the machine."""
    command = printable(" ".join([report.target, *report.arguments]), 160)
    yield Fact("target", command, is_bare=True)
    yield Fact("over", " · ".join(_axis_text(axis) for axis in report.axes))
    yield Fact("step times", f"{len(report.points):,}", only=Medium.PAGE)
    # Each CPU point uses its best number of threads.
    counts = sorted({point.num_threads for point in report.points if point.num_threads})
    threads = ""
    if counts and not any(axis.role is AxisRole.THREADS for axis in report.axes):
        threads = " or ".join([*map(str, counts[:-1]), plural(counts[-1], "thread")])
    yield from host_facts(report.host, threads)
    # With --host, or on a cluster, another processor measured the step.
    cpus = dict.fromkeys(one.hardware for one in report.points if one.kind is DeviceKind.CPU)
    if cpus and set(cpus) != {report.host.name}:
        yield Fact("CPU", ", ".join(printable(name, 80) for name in cpus))
    yield from side_effect_facts(report.writes)


def _axis_text(axis: SweepAxis) -> str:
    texts = [shorten(value_text(value), 24) for value in axis.values]
    if len(texts) <= _MAX_VALUES:
        return f"{axis_word(axis.name)} {', '.join(texts)}"
    return f"{axis_word(axis.name)} {texts[0]} to {texts[-1]} ({len(texts):,} values)"


def headline(report: SweepReport) -> str:
    """Return the answer along the first axis in one sentence."""
    if not report.points:
        return "No point of the grid gave an answer."
    axis = report.axes[0].name
    along = [crossover for crossover in report.crossovers if crossover.outcome.axis == axis]
    if not along:
        # Without an order of sizes, count how often each kind has the shortest step.
        best: dict[tuple[tuple[str, AxisValue], ...], tuple[float, DeviceKind]] = {}
        for point in report.points:
            if point.fits is not False:
                key, own = tuple(point.settings.items()), (point.step_ns, point.kind)
                best[key] = min(best.get(key, own), own)
        num_cpu = sum(kind is DeviceKind.CPU for _, kind in best.values())
        return f"The CPU has the shortest step at {num_cpu:,} of {plural(len(best), 'point')}."
    always = [c for c in along if _is_always(DeviceKind.GPU, c)]
    starts = [c for c in along if isinstance(c.outcome, Crossover)]
    word, settings = _word(axis), _held_settings(along)
    first = min(starts, key=_start_of, default=None)
    start = ""
    if first is not None and isinstance(first.outcome, Crossover):
        start = f"from {_place_text(first.outcome)} on ({crossover_interval(first.outcome)})"
    if len(settings) > 1:
        num_won = len(_held_settings([*always, *starts]))
        if num_won == 0:
            return (
                f"No GPU pays off for good from any {word} searched, in any of "
                f"{len(settings)} settings."
            )
        earliest = ""
        if first is not None and not always:
            earliest = f", at the earliest {start} ({printable(first.device, 60)})"
        return f"A GPU pays off in {num_won} of {len(settings)} settings{earliest}."
    searched = along[0].outcome.searched if not always else always[0].outcome.searched
    ends = "" if searched is None else f", {searched[0]:,} to {searched[1]:,}"
    if always:
        names = listed([printable(crossover.device, 60) for crossover in always], 3)
        return f"A GPU pays off at every {word} searched{ends}: {names}."
    if first is not None:
        return f"A GPU pays off {start}: {printable(first.device, 60)}."
    if all(_is_always(DeviceKind.CPU, crossover) for crossover in along):
        return f"No GPU pays off at any {word} searched{ends}."
    return f"No GPU pays off for good from any {word} searched{ends}."


def _held_settings(group: Sequence[SweepCrossover]) -> list[dict[str, AxisValue]]:
    """Return the distinct settings of the other axes."""
    settings: list[dict[str, AxisValue]] = []
    for crossover in group:
        if crossover.held not in settings:
            settings.append(crossover.held)
    return settings


def _word(axis: str) -> str:
    """Return ``batch size``, or ``number of threads``."""
    return f"number of {_COUNTED[axis]}" if axis in _COUNTED else axis_word(axis)


def _place_text(outcome: Crossover) -> str:
    """Return ``batch size 413``, or ``2 threads``."""
    value, counted = f"{outcome.value:,}", _COUNTED.get(outcome.axis)
    return f"{value} {counted}" if counted else f"{axis_word(outcome.axis)} {value}"


def _start_of(crossover: SweepCrossover) -> float:
    """Return the value from which the GPU wins, for sorting; infinity if it never wins."""
    outcome = crossover.outcome
    if isinstance(outcome, Crossover):
        return outcome.value
    return 0 if outcome.faster is DeviceKind.GPU else math.inf


def _is_always(kind: DeviceKind, crossover: SweepCrossover) -> bool:
    outcome = crossover.outcome
    return isinstance(outcome, NoCrossover) and outcome.faster is kind


def sweep_sections(report: SweepReport) -> Iterator[Section]:
    """Yield charts, crossovers, step times, failures and caveats."""
    charts = sweep_charts(report)
    shown = charts[:_MAX_CHARTS]
    cut = f"The first {len(shown)} of {len(charts)} charts; every figure is in the JSON."
    more = [Line(cut)] if len(shown) < len(charts) else []
    if charts:
        title = f"From which {_word(report.axes[0].name)} on a GPU pays off"
        yield Section(title, (*shown, *more), only=Medium.PAGE)
    groups: dict[str, list[SweepCrossover]] = {axis.name: [] for axis in report.axes}
    for crossover in report.crossovers:
        groups.setdefault(crossover.outcome.axis, []).append(crossover)
    for group in filter(None, groups.values()):
        along = _word(group[0].outcome.axis)
        ends = {c.outcome.searched[1] for c in group if c.outcome.searched is not None}
        up_to = f" up to {max(ends):,}" if len(ends) == 1 else " searched"
        title = f"From which {along} on a GPU is faster, for all larger ones{up_to}"
        yield Section(title, (_crossover_table(group, title),))
    yield from _step_sections(report, charts)
    yield from _failure_section(report)
    yield from caveat_section(_caveats(report))


def _crossover_table(group: Sequence[SweepCrossover], caption: str) -> Table:
    """Return one sentence for each GPU, or one row for each setting of the other axes."""
    settings = _held_settings(group)
    if len(settings) == 1:
        ordered = sorted(group, key=_start_of)
        names = [shorten(printable(crossover.device), 24) for crossover in ordered]
        sentences = [Cell(_crossover_phrase(crossover)) for crossover in ordered]
        columns = (Column("GPU", names), Column("from", sentences, least=12))
        return Table(columns, caption=caption, has_header=False)
    shown = evenly_spread(range(len(settings)), _MAX_CROSSOVERS)
    texts = dict.fromkeys(c.device for c in group)
    names = [printable(settings_text(settings[number]), 60) for number in shown]
    columns = [Column("", names, page_header="settings", least=8)]
    for device in texts:
        found = {settings.index(c.held): c.outcome for c in group if c.device == device}
        cells: list[str] = []
        for number in shown:
            match found.get(number):
                case Crossover() as outcome:
                    cells.append(f"{outcome.value:,} ({crossover_interval(outcome)})")
                case NoCrossover(faster=faster):
                    cells.append(_NEVER[faster])
                case None:
                    cells.append("-")
        columns.append(Column(printable(device), cells, is_number=True))
    is_cut = len(shown) < len(settings)
    cut = f"{len(shown)} of {len(settings):,} settings; all by --json" if is_cut else ""
    return Table(columns, caption=caption, legend=cut)


def _crossover_phrase(crossover: SweepCrossover) -> Phrase:
    outcome = crossover.outcome
    match outcome:
        case Crossover():
            return ("from ", (_place_text(outcome), "bold"), f" on ({crossover_interval(outcome)})")
        case NoCrossover():
            # The sentence already follows the name.
            reason = printable(outcome.none_because, 600)
            return reason.removeprefix(f"{printable(crossover.device)} ")
        case _:
            assert_never(outcome)


def sweep_charts(report: SweepReport) -> tuple[Chart, ...]:
    """Return the charts of a sweep; none if there are no step times.

    There is one chart along the first axis for each setting of the others; CPU threads share a
    chart. Further charts are along the number of parameters, if it differs at each value and has a
    crossover outcome.
    """
    if not report.axes:
        return ()
    first, *others = report.axes
    held_axes = [axis for axis in others if axis.role is not AxisRole.THREADS]
    groups: dict[tuple[AxisValue, ...], list[SweepPoint]] = {}
    for point in report.points:
        if all(point.settings.get(axis.name) in axis.values for axis in report.axes):
            key = tuple(point.settings[axis.name] for axis in held_axes)
            groups.setdefault(key, []).append(point)
    charts: list[Chart] = []
    for values, points in groups.items():
        held = dict(zip((axis.name for axis in held_axes), values, strict=True))
        places = [point.settings[first.name] for point in points]
        charts.append(_sweep_chart(report, first.name, held, points, places))
        pairs = {(point.settings[first.name], point.num_parameters) for point in points}
        numbers = {number for _, number in pairs}
        # Each value of the axis has its own number of parameters, and crossovers use that number.
        if (
            0 not in numbers
            and len(pairs) == len(numbers) > 1
            and any(
                crossover.outcome.axis == NUM_PARAMETERS and _agree(crossover.held, held)
                for crossover in report.crossovers
            )
        ):
            places = [point.num_parameters for point in points]
            charts.append(_sweep_chart(report, NUM_PARAMETERS, held, points, places))
    return tuple(charts)


def _agree(one: Mapping[str, AxisValue], other: Mapping[str, AxisValue]) -> bool:
    """Return whether all shared settings are equal."""
    return all(one[name] == value for name, value in other.items() if name in one)


def _sweep_chart(
    report: SweepReport,
    axis: str,
    held: dict[str, AxisValue],
    points: Sequence[SweepPoint],
    places: Sequence[AxisValue],
) -> Chart:
    """Return the chart along one axis.

    Args:
        report: The sweep.
        axis: Name of that axis.
        held: Settings of the other axes.
        points: Points with these settings.
        places: The value of the axis for each point.
    """
    first, word, note = report.axes[0], axis_word(axis), settings_text(held)
    if first.role is AxisRole.NUM_DEVICES and axis == first.name:
        note = "; ".join(filter(None, (note, "each GPU adds a batch to the step")))
    values = first.values if axis == first.name else sorted(set(places), key=float)
    along = [value for value in values if value in places]
    if not any(isinstance(value, str) for value in along):
        along = sorted(along, key=float)
    cpus = {point.hardware for point in report.points if point.kind is DeviceKind.CPU}
    rival = "this CPU" if cpus == {report.host.name} else "the CPU"
    # A GPU prediction does not depend on the CPU's threads: draw it once. Along threads, the CPU is
    # still one device.
    threads = next((one.name for one in report.axes[1:] if one.role is AxisRole.THREADS), None)
    shares = [one.name for one in report.axes if one.role is AxisRole.NUM_DEVICES]
    lines: dict[tuple[str, DeviceKind], dict[int, SweepPoint]] = {}
    rivals: dict[int, Timed] = {}
    batches: dict[int, int] = {}
    for point, value in zip(points, places, strict=True):
        row = along.index(value)
        name = point.hardware if first.role is AxisRole.THREADS else point.device
        if point.kind is DeviceKind.CPU:
            # The name may hold the threads already.
            if threads is not None and point.device == point.hardware:
                name += f", threads {value_text(point.settings[threads])}"
            name = name.replace(point.hardware, rival, 1)
            if point.fits is not False and is_timed(point):
                rivals[row] = min(point, rivals.get(row, point), key=lambda one: one.step_ns)
        elif shares:
            batches[row] = int(point.settings[shares[0]])
        lines.setdefault((name, point.kind), {}).setdefault(row, point)
    outcomes = [
        one for one in report.crossovers if one.outcome.axis == axis and _agree(one.held, held)
    ]
    # Compare GPUs at the largest value with a time of the CPU.
    last = max(rivals, default=0)
    times_ns = {
        name: own[last].step_ns if last in own and own[last].fits is not False else math.inf
        for (name, kind), own in lines.items()
        if kind is DeviceKind.GPU
    }
    starts = {one.device: _start_of(one) for one in sorted(outcomes, key=_start_of, reverse=True)}
    # If one pays off from some value on, draw the one that the answer names.
    is_first = 0 < min(starts.values(), default=0) < math.inf
    best = min(
        times_ns,
        key=lambda name: (starts.get(name, math.inf), 0 if is_first else times_ns[name]),
        default="",
    )
    return speed_chart(
        title=f"Speed against {rival} along the {_word(axis)}",
        note=note,
        word=word,
        places=[float(value) for value in along if not isinstance(value, str)] or None,
        x_labels=[value_text(value) for value in along],
        lines=[
            TimedLine(
                name=name,
                kind=kind,
                times=own,
                batches=batches if kind is DeviceKind.GPU else {},
            )
            for (name, kind), own in lines.items()
        ],
        rival=rival,
        rivals=rivals,
        chosen=chosen_gpus(times_ns, best, "first to pay off" if is_first else "fastest"),
        # Each crossover with the settings that distinguish it within the chart.
        crossovers=[
            (settings_text({k: v for k, v in one.held.items() if k not in held}), one.outcome)
            for one in outcomes
            if isinstance(one.outcome, Crossover)
        ],
    )


def _step_sections(report: SweepReport, charts: Sequence[Chart]) -> Iterator[Section]:
    """Yield a table and a chart for each held setting, up to a readable number."""
    word = axis_word(report.axes[0].name)
    along = [chart for chart in charts if chart.x.label == word]
    samples = [p.num_samples for p in report.points if p.source is Source.MEASURED]
    is_predicted = any(point.source is Source.PREDICTED for point in report.points)
    legend = sample_legend(samples, is_predicted=is_predicted)
    for chart in along[:_MAX_BLOCKS]:
        is_curve = chart.x.scale is not Scale.CATEGORY and len(chart.x_labels) > 1
        is_curve = is_curve and not chart.is_empty
        title = chart.title.replace("Speed", "Step time and speed", 1)
        title += f", {chart.note}" if chart.note else ""
        blocks = (_step_table(chart, legend), *([chart] if is_curve else []))
        yield Section(title, blocks, only=Medium.TERMINAL)
    num_hidden = len(along) - _MAX_BLOCKS
    if num_hidden > 0:
        more = Line(f"and {plural(num_hidden, 'more setting')}, listed by --json", "dim")
        yield Section("", (more,), only=Medium.TERMINAL)


def _step_table(chart: Chart, legend: str) -> Table:
    """Return sizes as rows and devices as columns; the shortest step of a row is bold."""
    rows = evenly_spread(range(len(chart.x_labels)), _MAX_ROWS)
    by_row = [{point.row: point for point in series.points} for series in chart.series]
    shortest_ns = {
        row: min(
            (own[row].step_ns for own in by_row if row in own and not own[row].is_too_big),
            default=0.0,
        )
        for row in rows
    }
    sizes = [shorten(chart.x_labels[row], _MAX_LABEL_CHARACTERS) for row in rows]
    columns = [Column(shorten(chart.x.label, _MAX_LABEL_CHARACTERS), sizes, is_number=True)]
    for series, points in zip(chart.series, by_row, strict=True):
        cells: list[Cell] = []
        for row in rows:
            point = points.get(row)
            if point is None:
                cells.append(Cell("-", style="dim"))
            elif point.is_too_big:
                cells.append(TOO_BIG)
            else:
                time = format_duration(point.step_ns, 2, keeps_zeros=True)
                style = "bold" if point.step_ns == shortest_ns[row] else ""
                cells.append(Cell((SOURCE_MARKS[point.source], " ", (time, style))))
        columns.append(Column(series.name.removeprefix("this "), cells, is_number=True))
    num_rows = len(chart.x_labels)
    cut = f"\n{len(rows)} of {num_rows} sizes; all by --json" if len(rows) < num_rows else ""
    return Table(columns, legend=legend + cut)


def _failure_section(report: SweepReport) -> Iterator[Section]:
    """Yield each reason once, with its settings."""
    by_message: dict[str, list[str]] = {}
    for failure in report.failures:
        settings = printable(settings_text(failure.settings), 120)
        by_message.setdefault(failure.message, []).append(settings)
    lines: list[Line] = []
    for message, settings in list(by_message.items())[:_MAX_FAILURES]:
        rest = len(settings) - _MAX_SETTINGS
        some = "; ".join(settings[:_MAX_SETTINGS]) + (f"; and {rest:,} more" if rest > 0 else "")
        lines += [Line(some, indent=2), Line(printable(message, 600), "dim", 4)]
    num_hidden = len(by_message) - _MAX_FAILURES
    if num_hidden > 0:
        lines.append(Line(f"and {num_hidden} more reasons, listed by --json", "dim", 2))
    if lines:
        yield Section(f"{plural(len(report.failures), 'point')} failed", lines, style="bold red")


def _caveats(report: SweepReport) -> Mapping[Caveat, str]:
    """Return each caveat once, with its devices and number of points."""
    points_by_caveat: dict[Caveat, list[SweepPoint]] = {caveat: [] for caveat in report.caveats}
    for point in report.points:
        for caveat in point.caveats:
            points_by_caveat.setdefault(caveat, []).append(point)
    held: dict[Caveat, str] = {}
    for caveat, points in points_by_caveat.items():
        names = list(dict.fromkeys(printable(point.device, 40) for point in points))
        devices = {point.device for point in points}
        num_points = sum(point.device in devices for point in report.points)
        share = "" if len(points) == num_points else f"; {len(points)} of {num_points} times"
        held[caveat] = "" if caveat in report.caveats else listed(names, 3) + share
    return held
