"""A measured host, and the table of CPUs, for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.device import HostCalibration, HostCpu, HostFigure, HostSpec
from breakeven.report.text import duration_with_interval, printable, shorten
from breakeven.units import format_digits, format_duration, format_percent

CALIBRATION_SCHEMA_VERSION = 1
HOSTS_SCHEMA_VERSION = 1

_GAP = 2
_NAME_WIDTH = 34
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


class CalibrationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator costs this host.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        host: Its costs, as predictions use them.
        single_thread_speed: How many times as fast as the reference host one of its threads is.
        figures: What was measured.
        num_rounds: Rounds, each of which measured every figure once.
        device_name: The CUDA device on which launches were measured too; empty without one.
        is_remembered: Whether it was measured by an earlier command.
        other_load_fraction: Share of its processors that other processes used meanwhile.
    """

    schema_version: int
    host: HostSpec
    single_thread_speed: float
    figures: tuple[HostFigure, ...]
    num_rounds: int
    device_name: str
    is_remembered: bool
    other_load_fraction: float


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """A CPU that may feed GPUs.

    Args:
        id: Stable lower-case identifier: ``epyc-7742``.
        name: What people call it.
        vendor: ``amd``, ``intel``, ``apple`` or ``arm``.
        core: Its microarchitecture: ``Zen 2``.
        num_cores: Physical cores of one socket.
        boost_hz: Highest clock of one core.
        release_year: Year of release.
        single_thread_speed: How many times as fast as the reference host one of its threads is.
        is_virtual: Whether it is what a virtual machine shows.
        aliases: Other names for it.
        source: Where its figures are from.
    """

    id: str
    name: str
    vendor: str
    core: str
    num_cores: int
    boost_hz: float
    release_year: int
    single_thread_speed: float
    is_virtual: bool
    aliases: tuple[str, ...]
    source: str


class HostsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The table of CPUs, or one of them.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        hosts: In the order of the table.
    """

    schema_version: int
    hosts: tuple[Cpu, ...]


def calibration_document(
    calibration: HostCalibration,
    *,
    single_thread_speed: float,
    is_remembered: bool,
    other_load_fraction: float,
) -> CalibrationDocument:
    """Return a measured host as a document; times are in nanoseconds per call."""
    return CalibrationDocument(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        host=calibration.host,
        single_thread_speed=single_thread_speed,
        figures=calibration.figures,
        num_rounds=calibration.num_rounds,
        device_name=calibration.device_name,
        is_remembered=is_remembered,
        other_load_fraction=other_load_fraction,
    )


def render_calibration(
    calibration: HostCalibration,
    console: Console,
    *,
    single_thread_speed: float,
    notes: Sequence[str],
) -> None:
    """Write what was measured of a host, what the model takes from it, and ``notes``."""
    console.print(Text(printable(calibration.host.name), style="bold"))
    speed = format_digits(single_thread_speed, 2)
    console.print(
        Text(f"{speed}× the single-thread speed of the reference host, an EPYC 7742 or the like")
    )
    console.print()
    measured = _table("measured, per call", "median (10–90 %)", "used for")
    for figure in calibration.figures:
        measured.add_row(
            Text(figure.title),
            Text(duration_with_interval(figure.median_ns, figure.low_ns, figure.high_ns)),
            Text(figure.used_for or "shown only"),
        )
    console.print(measured)
    console.print()
    costs = _table("what predictions take", "")
    for field, title in _COSTS:
        costs.add_row(Text(title), Text(format_duration(getattr(calibration.host, field), 2)))
    console.print(costs)
    spread = math.expm1(calibration.host.log_sigma)
    console.print(
        Text(f"A step takes this host what they give within ±{format_percent(spread)}, one sigma.")
    )
    console.print(Text(printable(calibration.host.source, None), style="dim"))
    for note in notes:
        console.print(Text(note, style="dim"))


def busy_note(other_load_fraction: float) -> str:
    """Return what to say of figures that were taken on a busy machine."""
    return (
        f"Other processes used {format_percent(other_load_fraction)} of the processors, so these "
        "figures are not kept: try again when the machine is quiet."
    )


def hosts_document(cpus: Sequence[HostCpu]) -> HostsDocument:
    """Return CPUs as a document."""
    hosts = (Cpu(**{field: getattr(cpu, field) for field in Cpu.__struct_fields__}) for cpu in cpus)
    return HostsDocument(schema_version=HOSTS_SCHEMA_VERSION, hosts=tuple(hosts))


def render_hosts(cpus: Sequence[HostCpu], console: Console) -> None:
    """Write one line per CPU, in the order given."""
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for header in ("host", "core"):
        table.add_column(header, no_wrap=True)
    for header in ("year", "cores", "boost", "speed"):
        table.add_column(header, justify="right", no_wrap=True)
    for cpu in cpus:
        table.add_row(*(Text(cell) for cell in _cells(cpu)))
    console.print(table)
    console.print(
        Text(
            "speed: of one thread, boost clock × instructions per clock, against the reference.\n"
            "Predict with one of them: breakeven check TARGET --host NAME",
            style="dim",
        )
    )


def _cells(cpu: HostCpu) -> Iterator[str]:
    yield shorten(cpu.name, _NAME_WIDTH)
    yield cpu.core
    yield str(cpu.release_year)
    yield str(cpu.num_cores)
    yield f"{format_digits(cpu.boost_hz / 1e9)} GHz"
    yield f"{cpu.single_thread_speed:.2f}"


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header)
    return table
