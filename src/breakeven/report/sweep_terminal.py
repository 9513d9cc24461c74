"""A sweep for a person at a terminal: from where on a GPU pays off, then the times behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from breakeven.report.chart_build import axis_word, report_charts, settings_text, value_text
from breakeven.report.chart_model import Chart, Scale
from breakeven.report.chart_terminal import chart_text
from breakeven.report.check_text import busy_warnings
from breakeven.report.result_table import glyphs_for
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.sweep_crossovers import (
    crossover_groups,
    crossover_lines,
    group_title,
    headline,
)
from breakeven.report.sweep_table import step_table
from breakeven.report.text import plural, printable, shorten
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.verdict import AxisRole, DeviceKind, SweepAxis, SweepPoint, SweepReport

_MAX_BLOCKS = 3
_MAX_CURVES = 10
_MANY_CURVES = 5
_MAX_FAILURES = 8
_MAX_CAVEATS = 10
_MAX_SETTINGS = 4
# Values of an axis that are written out; of more, only the first and the last are.
_MAX_VALUES = 6
_CHART_ROWS = (10, 16)
_CHART_COLUMNS = 100


def render_sweep(report: SweepReport, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven sweep`` found out.
        console: Where to; its size, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    _say(console, Text(headline(report), style="bold"))
    # What may turn the answer itself belongs beside it.
    for warning in busy_warnings(c for held in (*report.points, report) for c in held.caveats):
        _say(console, Text(warning, style="yellow"))
    console.line()
    for fact in _facts(report):
        _say(console, Text(fact, style="dim"))
    for group in crossover_groups(report):
        console.line()
        _say(console, Text(group_title(group), style="bold"))
        table, left_out = crossover_lines(group, console)
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        if left_out:
            _say(console, Text(left_out, style="dim"), 2)
    _render_blocks(report, console)
    _render_failures(report, console)
    _render_caveats(report, console)
    if hints:
        console.line()
        for hint in hints:
            _say(console, Text(printable(hint), style="dim"))


def _say(console: Console, text: Text, indent: int = 0) -> None:
    # A path longer than the line is cut at the line's end, not dropped.
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)


def _facts(report: SweepReport) -> Iterator[str]:
    command = " ".join([report.target, *report.arguments])
    yield printable(command, 160)
    yield "over " + " · ".join(_axis_text(axis) for axis in report.axes)
    host = report.host
    yield "host: " + " · ".join(
        [
            printable(host.name, 80),
            _threads(report),
            f"torch {printable(host.torch_version)}",
            # What was assumed beside is in the JSON report.
            printable(host.calibration, 120),
        ]
    )
    # With --host, or on a cluster, the step was measured on another processor.
    cpus = dict.fromkeys(point.hardware for point in _cpu_points(report))
    if cpus and set(cpus) != {host.name}:
        yield "CPU: " + ", ".join(printable(name, 80) for name in cpus)
    yield from (f"{name}: {text}" for name, text in side_effect_lines(report))


def _threads(report: SweepReport) -> str:
    """Return the threads of the CPU's steps, of which each point has those that suit it best."""
    counts = sorted({point.num_threads for point in report.points if point.num_threads})
    if not counts or any(axis.role is AxisRole.THREADS for axis in report.axes):
        return plural(report.host.num_threads, "thread")
    if len(counts) == 1:
        return plural(counts[0], "thread")
    listed = ", ".join(f"{count:,}" for count in counts[:-1])
    return f"{listed} or {counts[-1]:,} threads, whichever suits a point"


def _cpu_points(report: SweepReport) -> list[SweepPoint]:
    return [point for point in report.points if point.kind is DeviceKind.CPU]


def _axis_text(axis: SweepAxis) -> str:
    texts = [shorten(value_text(value), 24) for value in axis.values]
    if len(texts) <= _MAX_VALUES:
        return f"{axis_word(axis.name)} {', '.join(texts)}"
    return f"{axis_word(axis.name)} {texts[0]} to {texts[-1]} ({len(texts):,} values)"


def _render_blocks(report: SweepReport, console: Console) -> None:
    """Show a table and a chart for each held setting, as many as a person reads."""
    word = axis_word(report.axes[0].name)
    charts = [chart for chart in report_charts(report) if chart.x.label == word]
    for chart in charts[:_MAX_BLOCKS]:
        console.line()
        _render_block(_with_short_names(report, chart), report, console)
    num_hidden = len(charts) - _MAX_BLOCKS
    if num_hidden > 0:
        console.line()
        settings = "1 more setting" if num_hidden == 1 else f"{num_hidden:,} more settings"
        _say(console, Text(f"and {settings}, listed by --json", style="dim"))


def _render_block(chart: Chart, report: SweepReport, console: Console) -> None:
    title = chart.title + (f", {chart.note}" if chart.note else "")
    _say(console, Text(title, style="bold"))
    steps = step_table(chart, console)
    console.print(Padding(steps.table, (0, 0, 0, 2), expand=False))
    for line in _legend(report, console):
        _say(console, Text(line, style="dim"), 2)
    left_out: list[str] = []
    if steps.num_hidden_rows:
        left_out.append(f"{steps.num_rows} of {len(chart.x_labels)} sizes")
    if steps.hidden:
        left_out.append(f"no room for {', '.join(steps.hidden[:4])}")
        if len(steps.hidden) > 4:
            left_out[-1] += f" and {len(steps.hidden) - 4} more"
    if left_out:
        _say(console, Text("; ".join(left_out) + "; all by --json", style="dim"), 2)
    if chart.x.scale is not Scale.CATEGORY and len(chart.x_labels) > 1:
        console.line()
        _render_chart(chart, console)


def _render_chart(chart: Chart, console: Console) -> None:
    num_hidden = len(chart.series) - _MAX_CURVES
    least_rows, most_rows = _CHART_ROWS
    # Many curves close to each other need the height.
    wanted_rows = console.height // 2 if len(chart.series) < _MANY_CURVES else most_rows
    text = chart_text(
        dataclasses.replace(chart, series=chart.series[:_MAX_CURVES]),
        num_columns=min(console.width - 2, _CHART_COLUMNS),
        num_rows=min(max(wanted_rows, least_rows), most_rows),
        is_ascii=console.options.ascii_only,
    )
    text.no_wrap = True
    text.overflow = "crop"
    console.print(Padding(text, (0, 0, 0, 2), expand=False))
    if num_hidden > 0:
        _say(console, Text(f"and {num_hidden} more curves: --chart FILE.html", style="dim"), 2)


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


def _legend(report: SweepReport, console: Console) -> Iterator[str]:
    glyphs = glyphs_for(console)
    marks: list[str] = []
    samples = [p.num_samples for p in report.points if p.source is Source.MEASURED]
    if samples:
        least = f"{min(samples):,} to " if min(samples) < max(samples) else ""
        steps = "1 step" if max(samples) == 1 else f"{max(samples):,} steps"
        marks.append(f"{glyphs.measured} measured ({least}{steps})")
    if any(point.source is Source.PREDICTED for point in report.points):
        marks.append(f"{glyphs.predicted} predicted")
    if marks:
        yield "   ".join(marks)


def _render_failures(report: SweepReport, console: Console) -> None:
    """Show each reason once, with the settings that it holds for."""
    if not report.failures:
        return
    settings_by_message: dict[str, list[str]] = {}
    for failure in report.failures:
        settings = settings_by_message.setdefault(failure.message, [])
        settings.append(printable(settings_text(failure.settings), 120))
    num_failures = len(report.failures)
    console.line()
    title = "1 point failed" if num_failures == 1 else f"{num_failures:,} points failed"
    _say(console, Text(title, style="bold red"))
    for message, settings in list(settings_by_message.items())[:_MAX_FAILURES]:
        _say(console, Text(_some(settings)), 2)
        _say(console, Text(printable(message, 600), style="dim"), 4)
    num_hidden = len(settings_by_message) - _MAX_FAILURES
    if num_hidden > 0:
        _say(console, Text(f"and {num_hidden} more reasons, listed by --json", style="dim"), 2)


def _some(texts: Sequence[str]) -> str:
    rest = len(texts) - _MAX_SETTINGS
    return "; ".join(texts[:_MAX_SETTINGS]) + (f"; and {rest:,} more" if rest > 0 else "")


def _render_caveats(report: SweepReport, console: Console) -> None:
    """Show each caveat once, with the devices and the number of points that it holds for.

    That of a busy machine stands beside the answer already.
    """
    points_by_caveat: dict[tuple[str, str], list[SweepPoint]] = {
        (caveat.code, caveat.message): [] for caveat in report.caveats
    }
    everywhere = set(points_by_caveat)
    for point in report.points:
        for caveat in point.caveats:
            points_by_caveat.setdefault((caveat.code, caveat.message), []).append(point)
    shown = {key: value for key, value in points_by_caveat.items() if key[0] != BUSY_MACHINE}
    if not shown:
        return
    console.line()
    _say(console, Text("Caveats", style="bold"))
    for (code, message), points in list(shown.items())[:_MAX_CAVEATS]:
        text = Text.assemble((printable(code, 40), "yellow"), "  ", printable(message, 600))
        if (code, message) not in everywhere:
            text.append(f" ({_where(points, report)})", style="dim")
        _say(console, text, 2)
    num_hidden = len(shown) - _MAX_CAVEATS
    if num_hidden > 0:
        _say(console, Text(f"and {num_hidden} more, listed by --json", style="dim"), 2)


def _where(points: Sequence[SweepPoint], report: SweepReport) -> str:
    names = list(dict.fromkeys(printable(point.device, 40) for point in points))
    devices = {point.device for point in points}
    num_points = sum(point.device in devices for point in report.points)
    where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return where if len(points) == num_points else f"{where}; {len(points)} of {num_points} times"
