"""The document of a sweep: from where on a GPU wins, the times behind it, and what went wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from breakeven.errors import Caveat
from breakeven.report.builders.sweep_crossovers import crossover_sections, headline
from breakeven.report.charts.build import axis_word, report_charts, settings_text, value_text
from breakeven.report.charts.model import Chart, ChartPoint, Scale
from breakeven.report.document import Document, Drawing, Lines, Section
from breakeven.report.phrase import Fact, Line, Medium
from breakeven.report.result_text import SOURCE_MARKS, sample_legend
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    host_facts,
    side_effect_facts,
)
from breakeven.report.table import Cell, Column, Table, evenly_spread
from breakeven.report.text import listed, plural, printable, shorten
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.units import format_duration
from breakeven.verdict import AxisRole, DeviceKind, SweepAxis, SweepPoint, SweepReport

_MAX_BLOCKS = 3
_MAX_CHARTS = 24
# Sizes that a terminal shows of a curve.
_MAX_ROWS = 20
_MAX_FAILURES = 8
_MAX_SETTINGS = 4
# Values of an axis that are written out; of more, only the first and the last are.
_MAX_VALUES = 6
_MAX_LABEL_CHARACTERS = 24


def sweep_document(report: SweepReport) -> Document:
    """Return the document of a sweep."""
    words = " and ".join(axis_word(axis.name) for axis in report.axes)
    return Document(
        title=f"When does a GPU pay off for {printable(report.target, 120)}, by {words}?",
        answers=(Line(headline(report), "bold"),),
        warnings=sweep_warnings(report),
        facts=tuple(sweep_facts(report)),
        blocks=(*sweep_sections(report), *caveat_section(sweep_caveats(report))),
        charts=report_charts(report),
        heading=report.target,
    )


def sweep_warnings(report: SweepReport) -> tuple[str, ...]:
    """Return what may turn the answer of a sweep."""
    return busy_warnings(caveat for held in (*report.points, report) for caveat in held.caveats)


def sweep_facts(report: SweepReport) -> Iterator[Fact]:
    """Yield what was swept, over what, and where."""
    command = printable(" ".join([report.target, *report.arguments]), 160)
    yield Fact("target", command, is_bare=True)
    yield Fact("over", " · ".join(_axis_text(axis) for axis in report.axes))
    yield Fact("step times", f"{len(report.points):,}", only=Medium.PAGE)
    yield from host_facts(report.host, _threads(report))
    # With --host, or on a cluster, the step was measured on another processor.
    cpus = dict.fromkeys(point.hardware for point in _cpu_points(report))
    if cpus and set(cpus) != {report.host.name}:
        yield Fact("CPU", ", ".join(printable(name, 80) for name in cpus))
    yield from side_effect_facts(report)


def sweep_sections(report: SweepReport) -> Iterator[Section]:
    """Yield crossovers, step times and failures."""
    yield from crossover_sections(report)
    charts = report_charts(report)
    yield from _step_sections(report, charts)
    shown = charts[:_MAX_CHARTS]
    if shown:
        cut = f"The first {len(shown)} of {len(charts)} charts; every figure is in the JSON."
        lines = Lines((Line(cut),) if len(shown) < len(charts) else ())
        drawings = tuple(map(Drawing, shown))
        yield Section("Step time", (lines, *drawings), only=Medium.PAGE)
    yield from _failure_section(report)


def sweep_caveats(report: SweepReport) -> Mapping[Caveat, str]:
    """Return each caveat once, with the devices and the number of points that it holds for.

    That of a busy machine stands beside the answer already.
    """
    points_by_caveat: dict[Caveat, list[SweepPoint]] = {caveat: [] for caveat in report.caveats}
    for point in report.points:
        for caveat in point.caveats:
            points_by_caveat.setdefault(caveat, []).append(point)
    return {
        caveat: "" if caveat in report.caveats else _where(points, report)
        for caveat, points in points_by_caveat.items()
        if caveat.code != BUSY_MACHINE
    }


def _where(points: Sequence[SweepPoint], report: SweepReport) -> str:
    names = list(dict.fromkeys(printable(point.device, 40) for point in points))
    devices = {point.device for point in points}
    num_points = sum(point.device in devices for point in report.points)
    where = listed(names, 3)
    return where if len(points) == num_points else f"{where}; {len(points)} of {num_points} times"


def _threads(report: SweepReport) -> str:
    """Return the threads of the CPU's steps, of which each point has those that suit it best."""
    counts = sorted({point.num_threads for point in report.points if point.num_threads})
    if not counts or any(axis.role is AxisRole.THREADS for axis in report.axes):
        return plural(report.host.num_threads, "thread")
    if len(counts) == 1:
        return plural(counts[0], "thread")
    fewer = ", ".join(f"{count:,}" for count in counts[:-1])
    return f"{fewer} or {counts[-1]:,} threads, whichever suits a point"


def _cpu_points(report: SweepReport) -> list[SweepPoint]:
    return [point for point in report.points if point.kind is DeviceKind.CPU]


def _axis_text(axis: SweepAxis) -> str:
    texts = [shorten(value_text(value), 24) for value in axis.values]
    if len(texts) <= _MAX_VALUES:
        return f"{axis_word(axis.name)} {', '.join(texts)}"
    return f"{axis_word(axis.name)} {texts[0]} to {texts[-1]} ({len(texts):,} values)"


def _step_sections(report: SweepReport, charts: Sequence[Chart]) -> Iterator[Section]:
    """Yield a table and a chart for each held setting, as many as a person reads."""
    word = axis_word(report.axes[0].name)
    along = [chart for chart in charts if chart.x.label == word]
    samples = [p.num_samples for p in report.points if p.source is Source.MEASURED]
    is_predicted = any(point.source is Source.PREDICTED for point in report.points)
    legend = sample_legend(samples, is_predicted=is_predicted)
    for chart in along[:_MAX_BLOCKS]:
        chart = _with_short_names(report, chart)
        is_curve = chart.x.scale is not Scale.CATEGORY and len(chart.x_labels) > 1
        title = chart.title + (f", {chart.note}" if chart.note else "")
        blocks = (_step_table(chart, legend), *([Drawing(chart)] if is_curve else []))
        yield Section(title, blocks, only=Medium.TERMINAL)
    num_hidden = len(along) - _MAX_BLOCKS
    if num_hidden > 0:
        more = Line(f"and {plural(num_hidden, 'more setting')}, listed by --json", "dim")
        yield Section("", (Lines((more,)),), only=Medium.TERMINAL)


def _with_short_names(report: SweepReport, chart: Chart) -> Chart:
    """Return the chart with "CPU" for the name of the CPU, where there is only one kind of it."""
    names = {point.device for point in _cpu_points(report)}
    kinds = {point.hardware for point in _cpu_points(report)}
    if len(kinds) != 1:
        return chart
    (long_name,) = names if len(names) == 1 else kinds
    long_name = printable(long_name, 60)
    series = tuple(
        dataclasses.replace(one, name="CPU" + one.name.removeprefix(long_name))
        if one.kind is DeviceKind.CPU and one.name.startswith(long_name)
        else one
        for one in chart.series
    )
    return dataclasses.replace(chart, series=series)


def _step_table(chart: Chart, legend: str) -> Table:
    """Return the sizes downwards and the devices across; the shortest step of a row is bold."""
    num_rows = len(chart.x_labels)
    rows = _shown_rows(chart)
    by_row = [{point.row: point for point in series.points} for series in chart.series]
    shortest_ns = {
        row: min(
            (
                points[row].step_ns
                for points in by_row
                if row in points and not points[row].is_too_big
            ),
            default=0.0,
        )
        for row in rows
    }
    devices = (
        Column(
            series.name,
            [_step_cell(points.get(row), shortest_ns[row]) for row in rows],
            is_number=True,
        )
        for series, points in zip(chart.series, by_row, strict=True)
    )
    sizes = [shorten(chart.x_labels[row], _MAX_LABEL_CHARACTERS) for row in rows]
    cut = f"\n{len(rows)} of {num_rows} sizes; all by --json" if len(rows) < num_rows else ""
    header = shorten(chart.x.label, _MAX_LABEL_CHARACTERS)
    return Table((Column(header, sizes, is_number=True), *devices), legend=legend + cut)


def _step_cell(point: ChartPoint | None, shortest_ns: float) -> Cell:
    if point is None:
        return Cell("-", style="dim")
    if point.is_too_big:
        return Cell("too big", style="red")
    time = format_duration(point.step_ns, 2, keeps_zeros=True)
    style = "bold" if point.step_ns == shortest_ns else ""
    return Cell((SOURCE_MARKS[point.source], " ", (time, style)))


def _shown_rows(chart: Chart) -> Sequence[int]:
    """Return rows evenly spread, with both ends and those around the first crossover."""
    rows = range(len(chart.x_labels))
    if len(rows) <= _MAX_ROWS:
        return rows
    shown = {*evenly_spread(rows, _MAX_ROWS - 2)}
    if chart.crossovers:
        first = min(mark.x for mark in chart.crossovers)
        x_of = {point.row: point.x for series in chart.series for point in series.points}
        below = [row for row, x in x_of.items() if x < first]
        above = [row for row, x in x_of.items() if x >= first]
        shown |= {*sorted(below)[-1:], *sorted(above)[:1]}
    return sorted(shown)


def _failure_section(report: SweepReport) -> Iterator[Section]:
    """Yield each reason once, with the settings that it holds for."""
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
        title = f"{plural(len(report.failures), 'point')} failed"
        yield Section(title, (Lines(tuple(lines)),), style="bold red")
