"""A calibrated GPU as a sheet: what it reaches, and what it takes to reach it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.cost import GpuCalibration, PrecisionEfficiency
from breakeven.report.document import Document, Lines, Section
from breakeven.report.phrase import Line
from breakeven.report.table import Column, Table
from breakeven.report.text import printable
from breakeven.units import format_bytes, format_duration, format_percent

_MOST_LEFT_OUT = 8


def gpu_calibration_document(calibration: GpuCalibration, *, notes: Sequence[str]) -> Document:
    """Return what was measured of a GPU, and ``notes``."""
    machine = calibration.machine
    families = calibration.families
    reached = Table(
        (
            Column("kernels", [_family(entry) for entry in families]),
            Column("precision", [entry.precision.value for entry in families]),
            Column("arithmetic", [format_percent(entry.compute_fraction) for entry in families]),
            Column("memory", [format_percent(entry.memory_fraction) for entry in families]),
            Column("samples", [str(entry.num_rows) for entry in families], is_number=True),
            Column("error", [format_percent(entry.median_error_fraction) for entry in families]),
        ),
        caption="What it reaches of its datasheet",
        legend="error: median of the fit over its samples",
    )
    end = (
        *(Line(printable(text, None)) for text in _reach(calibration)),
        *(Line(printable(text, None), "dim") for text in _left_out(calibration)),
        *(Line(printable(note, None), "dim") for note in notes),
    )
    where = f"{machine.processor}, {machine.driver}, torch {machine.torch_version}"
    return Document(
        title=printable(machine.gpu),
        answers=(
            Line(printable(machine.gpu), "bold"),
            Line(printable(f"calibrated on this GPU on {machine.date}: {where}", None)),
        ),
        blocks=(Section("", (reached, Lines(end))),),
    )


def _family(entry: PrecisionEfficiency) -> str:
    return f"{entry.family} {entry.variant}".strip().replace("_", " ")


def _reach(calibration: GpuCalibration) -> Iterator[str]:
    launch = calibration.launch
    if launch is not None:
        yield (
            f"small operator: {format_duration(launch.queued_ns, 2)} to issue, "
            f"{format_duration(launch.period_ns, 2)} apart in a full queue, "
            f"{format_duration(launch.waited_ns, 2)} with a wait"
        )
    for copy in calibration.copies:
        kind = "pinned" if copy.is_pinned else "pageable"
        yield (
            f"copy of {kind} memory: {format_bytes(copy.bytes_per_s)}/s, "
            f"{format_duration(copy.least_ns, 2)} at least"
        )
    if calibration.steps:
        yield f"whole steps: {len(calibration.steps)}"


def _left_out(calibration: GpuCalibration) -> Iterator[str]:
    for text in calibration.left_out[:_MOST_LEFT_OUT]:
        yield f"left out: {text}"
    num_more = len(calibration.left_out) - _MOST_LEFT_OUT
    if num_more > 0:
        yield f"left out: {num_more} more, which the file names"
