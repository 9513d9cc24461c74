"""A calibrated host and GPU: the cost of operators, and the rates that the GPU reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from breakeven.cost import GpuCalibration
from breakeven.device import HostCalibration, HostFigure, HostSpec
from breakeven.report.document import Column, Document, Line, Section, Table
from breakeven.report.text import duration_with_interval, printable
from breakeven.units import format_bytes, format_digits, format_duration, format_percent

CALIBRATION_SCHEMA_VERSION = 1
_COSTS = (
    ("op_ns", "operator of a GPU, without its launch"),
    ("python_ns", "Python around an operator of a forward pass"),
    ("view_python_ns", "Python around a view of a forward pass"),
    ("autograd_ns", "recording an operator for backward"),
    ("backward_ns", "operator of the backward pass"),
    ("backward_call_ns", "call of loss.backward()"),
    ("view_ns", "view"),
    ("foreach_ns", "foreach operator of an optimizer"),
    ("foreach_tensor_ns", "each tensor of it"),
)
_MOST_LEFT_OUT = 8


class CalibrationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an operator on this host.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        host: The host's costs, as used in predictions.
        single_thread_speed: Speed of one thread, relative to the reference host.
        figures: The measured figures.
        num_rounds: Rounds of measurement; each measured every figure once.
        device_name: The CUDA device on which launches were also measured; empty if none.
        is_remembered: Whether an earlier command measured it.
        other_load_fraction: Share of the processors that other processes used during measurement.
        gpu_calibration: File with the calibration of this machine's GPU; empty if none.
    """

    schema_version: int
    host: HostSpec
    single_thread_speed: float
    figures: tuple[HostFigure, ...]
    num_rounds: int
    device_name: str
    is_remembered: bool
    other_load_fraction: float
    gpu_calibration: str = ""


def stored_calibration(calibration: HostCalibration, **found: Any) -> CalibrationDocument:
    """Return a calibrated host as stored, plus the fields in ``found``; times are ns per call."""
    return CalibrationDocument(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        host=calibration.host,
        figures=calibration.figures,
        num_rounds=calibration.num_rounds,
        device_name=calibration.device_name,
        **found,
    )


def calibration_document(
    calibration: HostCalibration, *, single_thread_speed: float, notes: Sequence[str]
) -> Document:
    """Return the figures measured on a host, the costs that predictions use, and ``notes``."""
    host, figures = calibration.host, calibration.figures
    times = [duration_with_interval(one.median_ns, one.low_ns, one.high_ns) for one in figures]
    used_for = [one.used_for or "shown only" for one in figures]
    measured = Table(
        (
            Column("measured, per call", [one.title for one in figures]),
            Column("median (10–90 %)", times),
            Column("used for", used_for, least=12),
        )
    )
    taken = Table(
        (
            Column("what predictions take", [title for _, title in _COSTS]),
            Column("", [format_duration(getattr(host, field), 2) for field, _ in _COSTS]),
        )
    )
    spread = format_percent(math.expm1(host.log_sigma))
    end = (
        Line(f"Host times predicted from them are within ±{spread} (one sigma)."),
        Line(printable(host.source, None), "dim"),
        *(Line(note, "dim") for note in notes),
    )
    speed = format_digits(single_thread_speed, 2)
    compared = "the single-thread speed of the reference host, an EPYC 7742 or the like"
    return Document(
        title=printable(host.name),
        answers=(Line(printable(host.name), "bold"), Line(f"{speed}× {compared}")),
        blocks=(Section("", (measured,)), Section("", (taken, *end))),
    )


def busy_note(other_load_fraction: float) -> str:
    """Return the note on figures measured on a busy machine."""
    return (
        f"Other processes used {format_percent(other_load_fraction)} of the processors, so these "
        "figures are not kept: try again when the machine is quiet."
    )


def gpu_calibration_document(calibration: GpuCalibration, *, notes: Sequence[str]) -> Document:
    """Return the figures measured on a GPU, and ``notes``."""
    machine, families = calibration.machine, calibration.families
    names = [f"{one.family} {one.variant}".strip().replace("_", " ") for one in families]
    reached = Table(
        (
            Column("kernels", names),
            Column("precision", [one.precision.value for one in families]),
            Column("arithmetic", [format_percent(one.compute_fraction) for one in families]),
            Column("memory", [format_percent(one.memory_fraction) for one in families]),
            Column("samples", [str(one.num_rows) for one in families], is_number=True),
            Column("error", [format_percent(one.median_error_fraction) for one in families]),
        ),
        legend="error: median of the fit over its samples",
    )
    left_out = [f"left out: {text}" for text in calibration.left_out]
    num_more = len(left_out) - _MOST_LEFT_OUT
    if num_more > 0:
        left_out[_MOST_LEFT_OUT:] = [f"left out: {num_more} more, which the file names"]
    where = f"{machine.processor}, {machine.driver}, torch {machine.torch_version}"
    return Document(
        title=printable(machine.gpu),
        answers=(
            Line(printable(machine.gpu), "bold"),
            Line(printable(f"calibrated on this GPU on {machine.date}: {where}", None)),
        ),
        blocks=(
            Section(
                "",
                (
                    reached,
                    *(Line(printable(text, None)) for text in _reach(calibration)),
                    *(Line(printable(text, None), "dim") for text in (*left_out, *notes)),
                ),
            ),
        ),
    )


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
