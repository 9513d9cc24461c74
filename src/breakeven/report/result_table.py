"""The table of devices: step times with intervals, fastest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.report.text import duration_with_interval, printable, ratio_alone, shorten
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_bytes, format_count
from breakeven.verdict import CheckReport, Choice, DeviceKind, DeviceResult, by_trust_and_time

# An axis shorter than a decade would show a difference of 5 % as wide as one of 500 %.
_SHORTEST_AXIS = 10.0
_PLOT_MIN_CHARACTERS = 13
_PLOT_MAX_CHARACTERS = 28
_GAP = 2
CHOICE_STYLES = {
    Choice.CPU: "bold cyan",
    Choice.GPU: "bold green",
    Choice.TOO_CLOSE: "bold yellow",
    Choice.UNDECIDED: "bold yellow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Characters that a terminal can show."""

    measured: str
    predicted: str
    line: str
    reference: str


UNICODE_GLYPHS = Glyphs(measured="●", predicted="○", line="─", reference="┊")
ASCII_GLYPHS = Glyphs(measured="*", predicted="o", line="-", reference=":")


def glyphs_for(console: Console) -> Glyphs:
    """Return the characters that the console's encoding holds."""
    return ASCII_GLYPHS if console.options.ascii_only else UNICODE_GLYPHS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    header: str
    cells: tuple[Text, ...]
    is_right_aligned: bool = False

    @property
    def num_characters(self) -> int:
        return max(cell_len(self.header), *(cell.cell_len for cell in self.cells))


def result_table(report: CheckReport, console: Console) -> Table:
    """Return the table of a report's devices, with as many columns as the console is wide for.

    Step time, ratio and bound are always there; throughput, a plot of the intervals on a
    logarithmic axis and peak memory join where there is room, in this order.
    """
    results = sort_results(report.results)
    verdict = report.verdict
    chosen = verdict.device if verdict.is_settled else None
    styles = [
        "dim" if result.fits is False else "bold" if result.device == chosen else ""
        for result in results
    ]
    columns = _chosen_columns(report, results, console)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.header,
            justify="right" if column.is_right_aligned else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for style, cells in zip(styles, zip(*(c.cells for c in columns), strict=True), strict=True):
        table.add_row(*cells, style=style)
    return table


def sort_results(results: Sequence[DeviceResult]) -> tuple[DeviceResult, ...]:
    """Return results by step time, those that do not fit their device last."""
    return tuple(sorted(results, key=lambda result: (result.fits is False, result.step_ns)))


def reference_cpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the CPU that GPUs are compared with: the fastest that was not disturbed."""
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    return min(cpus, key=by_trust_and_time, default=None)


def device_label(result: DeviceResult) -> str:
    """Return a device's name; the CPU that the step was measured on is ``this CPU``."""
    if result.kind is DeviceKind.CPU and result.source is Source.MEASURED:
        return f"this CPU, {result.setting}" if result.setting else "this CPU"
    return printable(result.device)


def interval_plot(
    interval: tuple[float, float, float],
    *,
    axis: tuple[float, float],
    num_characters: int,
    mark: str,
    line: str = "─",
    reference: float | None = None,
    reference_mark: str = "┊",
) -> str:
    """Return ``──○───``: a value and its interval on a logarithmic axis.

    Args:
        interval: Low, value and high, in one unit, above 0.
        axis: Ends of the axis, in the same unit.
        num_characters: Length of the axis.
        mark: Character of the value.
        line: Character of the interval.
        reference: Another value to mark, under the interval; ``None`` for none.
        reference_mark: Its character.
    """

    def position(value: float) -> int:
        share = math.log(value / axis[0]) / math.log(axis[1] / axis[0])
        return min(max(round(share * (num_characters - 1)), 0), num_characters - 1)

    low, value, high = (position(figure) for figure in interval)
    characters = [" "] * num_characters
    if reference is not None:
        characters[position(reference)] = reference_mark
    characters[low : high + 1] = line * (high + 1 - low)
    characters[value] = mark
    return "".join(characters)


def log_axis(results: Sequence[DeviceResult]) -> tuple[float, float]:
    """Return the ends of an axis that holds every interval and is at least a decade long."""
    low = min(max(result.low_ns, 1.0) for result in results)
    high = max(max(result.high_ns, 1.0) for result in results)
    stretch = math.sqrt(max(_SHORTEST_AXIS / (high / low), 1.0))
    return low / stretch, high * stretch


def _chosen_columns(
    report: CheckReport, results: Sequence[DeviceResult], console: Console
) -> list[_Column]:
    cpu = reference_cpu(results)
    glyphs = glyphs_for(console)
    names = _Column(
        header="  device", cells=tuple(_name_cell(r, glyphs, console.width) for r in results)
    )
    times = _Column(
        header="step time",
        cells=tuple(Text(duration_with_interval(r.step_ns, r.low_ns, r.high_ns)) for r in results),
    )
    bounds = _Column(header="bound", cells=tuple(_bound_cell(r) for r in results))
    columns = [names, times, bounds]
    if cpu is not None:
        columns.insert(2, _ratio_column(results, cpu))

    def room() -> int:
        return console.width - sum(column.num_characters + _GAP for column in columns)

    batch_size = report.step.batch_size
    if batch_size is not None:
        throughputs = _throughput_column(results, batch_size)
        if room() >= throughputs.num_characters:
            columns.insert(2, throughputs)
    memory = _memory_column(results)
    plot_characters = min(room(), _PLOT_MAX_CHARACTERS)
    if plot_characters >= _PLOT_MIN_CHARACTERS + memory.num_characters + _GAP:
        plot_characters = min(room() - memory.num_characters - _GAP, _PLOT_MAX_CHARACTERS)
    if plot_characters >= _PLOT_MIN_CHARACTERS:
        columns.insert(2, _plot_column(results, cpu, glyphs, plot_characters))
    if any(result.peak_memory_bytes is not None for result in results) and (
        room() >= memory.num_characters
    ):
        columns.append(memory)
    return columns


def _name_cell(result: DeviceResult, glyphs: Glyphs, num_columns: int) -> Text:
    is_measured = result.source is Source.MEASURED
    name = shorten(device_label(result), 26 if num_columns >= 80 else 18)
    mark = glyphs.measured if is_measured else glyphs.predicted
    return Text.assemble((mark, "green" if is_measured else "blue"), " ", name)


def _ratio_column(results: Sequence[DeviceResult], cpu: DeviceResult) -> _Column:
    def cell(result: DeviceResult) -> Text:
        if result.step_ns <= 0 or result.fits is False:
            return Text("")
        ratio = cpu.step_ns / result.step_ns
        style = "" if result is cpu else ("green" if ratio > 1 else "yellow")
        return Text(ratio_alone(ratio), style=style)

    return _Column(
        header="vs CPU", cells=tuple(cell(result) for result in results), is_right_aligned=True
    )


def _bound_cell(result: DeviceResult) -> Text:
    if result.fits is False:
        return Text("too big", style="red")
    return Text("" if result.bound is None else result.bound.value)


def _throughput_column(results: Sequence[DeviceResult], batch_size: int) -> _Column:
    def cell(result: DeviceResult) -> Text:
        if result.step_ns <= 0 or result.fits is False:
            return Text("")
        return Text(format_count(batch_size * NS_PER_S / result.step_ns, 2))

    return _Column(
        header="samples/s", cells=tuple(cell(result) for result in results), is_right_aligned=True
    )


def _plot_column(
    results: Sequence[DeviceResult],
    cpu: DeviceResult | None,
    glyphs: Glyphs,
    num_characters: int,
) -> _Column:
    axis = log_axis(results)

    def cell(result: DeviceResult) -> Text:
        is_measured = result.source is Source.MEASURED
        plot = interval_plot(
            (max(result.low_ns, 1.0), max(result.step_ns, 1.0), max(result.high_ns, 1.0)),
            axis=axis,
            num_characters=num_characters,
            mark=glyphs.measured if is_measured else glyphs.predicted,
            line=glyphs.line,
            reference=None if cpu is None else max(cpu.step_ns, 1.0),
            reference_mark=glyphs.reference,
        )
        return Text(plot, style="green" if is_measured else "blue")

    return _Column(
        header="faster" + "slower".rjust(num_characters - len("faster")),
        cells=tuple(cell(result) for result in results),
    )


def _memory_column(results: Sequence[DeviceResult]) -> _Column:
    return _Column(
        header="memory",
        cells=tuple(
            Text("" if r.peak_memory_bytes is None else format_bytes(r.peak_memory_bytes, 2))
            for r in results
        ),
        is_right_aligned=True,
    )
