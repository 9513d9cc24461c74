"""How the answer changes with the size: a GPU's speed against the CPU's, along the axis."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.report.text import printable, ratio_alone, shorten
from breakeven.verdict import CheckReport, Choice, Crossover, Curve, CurvePoint, DeviceKind

_CELL_CHARACTERS = 9
_NAME_CHARACTERS = 18
_MAX_SIZES = 9
# That of the report, and the gap after the label.
_INDENT = 4


def curve_table(report: CheckReport, console: Console) -> Table | None:
    """Return one row of ratios over the sizes searched; ``None`` where no curves were made.

    The row is of the GPU that the report's crossover, or else its verdict, is about; the sizes
    are those at which both it and the CPU have a point, thinned to what the console holds.
    """
    gpu = _curve(report, DeviceKind.GPU, _gpu_name(report))
    cpu = _curve(report, DeviceKind.CPU, None)
    if gpu is None or cpu is None:
        return None
    cpu_points = {point.size: point for point in cpu.points}
    pairs = [
        (cpu_points[point.size], point)
        for point in sorted(gpu.points, key=lambda point: point.size)
        if point.size in cpu_points and point.step_ns > 0
    ]
    if len(pairs) < 2:
        return None
    label = shorten(printable(gpu.device), _NAME_CHARACTERS) + " vs CPU"
    room = (console.width - len(label) - _INDENT) // _CELL_CHARACTERS
    pairs = _thinned(pairs, min(max(room, 2), _MAX_SIZES))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(printable(gpu.axis.replace("_", " ")), no_wrap=True, overflow="ellipsis")
    for cpu_point, _ in pairs:
        table.add_column(f"{cpu_point.size:,}", justify="right", no_wrap=True)
    ratios = [cpu_point.step_ns / gpu_point.step_ns for cpu_point, gpu_point in pairs]
    table.add_row(
        label,
        *(Text(ratio_alone(ratio), style="green" if ratio > 1 else "yellow") for ratio in ratios),
    )
    return table


def _gpu_name(report: CheckReport) -> str:
    if isinstance(report.crossover, Crossover):
        return report.crossover.device
    verdict = report.verdict
    return verdict.over if verdict.choice is Choice.CPU else verdict.device


def _curve(report: CheckReport, kind: DeviceKind, device: str | None) -> Curve | None:
    for curve in report.curves:
        if curve.kind is kind and device in (None, curve.device):
            return curve
    return None


def _thinned(
    pairs: list[tuple[CurvePoint, CurvePoint]], num_kept: int
) -> list[tuple[CurvePoint, CurvePoint]]:
    """Return ``num_kept`` pairs, evenly spread, the first and the last among them."""
    if len(pairs) <= num_kept:
        return pairs
    last = len(pairs) - 1
    return [pairs[round(index * last / (num_kept - 1))] for index in range(num_kept)]
