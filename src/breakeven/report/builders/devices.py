"""GPUs, CPUs, and a measured host: as tables, as one of them in full, and as stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from breakeven.device import (
    DeviceSpec,
    HostCalibration,
    HostCpu,
    HostFigure,
    HostKind,
    HostSpec,
    Precision,
)
from breakeven.report.document import Document, Lines, Section
from breakeven.report.phrase import Line
from breakeven.report.table import Column, Table
from breakeven.report.text import duration_with_interval, printable
from breakeven.simulate import Z_90
from breakeven.units import (
    BYTES_PER_GIB,
    format_bytes,
    format_count,
    format_digits,
    format_duration,
    format_percent,
)

DEVICES_SCHEMA_VERSION = 1

_HEADERS = ("device", "architecture", "year", "memory", "bandwidth", "fp32", "fp16")


class DevicesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The catalogue of GPUs, or one of them.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        devices: In the order of the catalogue.
    """

    schema_version: int
    devices: tuple[DeviceSpec, ...]


def stored_devices(devices: Sequence[DeviceSpec]) -> DevicesDocument:
    """Return devices as a document; rates are per second."""
    return DevicesDocument(schema_version=DEVICES_SCHEMA_VERSION, devices=tuple(devices))


def devices_document(devices: Sequence[DeviceSpec]) -> Document:
    """Return one line per device, in the order given."""
    columns = zip(*map(_row, devices), strict=True)
    notes = (
        "fp32, fp16: dense peak in FLOP/s, fp16 on tensor cores where there are any.",
        "One device in full, with sources: breakeven devices NAME",
    )
    table = Table(
        # In a narrow terminal names are cut, then the architecture goes; never a figure.
        columns=tuple(
            Column(
                header,
                cells,
                is_number=header not in ("device", "architecture"),
                folds=header == "device",
                least=18,
                optional=1 if header == "architecture" else 0,
            )
            for header, cells in zip(_HEADERS, columns, strict=True)
        ),
        caption="Devices whose steps can be predicted",
        legend="\n".join(notes),
    )
    return Document(title="Devices", blocks=(table,))


def device_document(device: DeviceSpec) -> Document:
    """Return everything that the catalogue knows about one device, with its sources."""
    labels, values = zip(*_sheet(device), strict=True)
    table = Table(
        (Column("figure", labels, style="dim"), Column("value", values, folds=True, least=12)),
        caption=device.name,
        has_header=False,
    )
    # One piece each, to be clicked or copied.
    sources = Lines(
        (Line("sources", "dim"), *(Line(f"  {source}", is_whole=True) for source in device.sources))
    )
    return Document(
        title=device.name, answers=(Line(device.name, "bold"),), blocks=(table, sources)
    )


def _row(device: DeviceSpec) -> tuple[str, ...]:
    return (
        device.name,
        device.architecture,
        str(device.release_year),
        _memory(device),
        f"{format_bytes(device.memory_bytes_per_s)}/s",
        _peak(device, Precision.FP32),
        _peak(device, Precision.FP16),
    )


def _sheet(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    chip = f" ({device.chip})" if device.chip else ""
    yield "id", device.id
    if device.aliases:
        yield "also", ", ".join(device.aliases)
    yield "vendor", f"{device.vendor}, {device.market}, {device.release_year}"
    yield "architecture", f"{device.architecture}{chip}"
    yield "units", f"{device.num_sms} at {_with_unit(device.clock_hz, 'Hz')}"
    for precision in device.peak_flop_per_s:
        rate = device.peak_flop_per_s[precision]
        yield precision.value, f"{_with_unit(rate, 'FLOP/s')} dense"
    yield "memory", _memory(device)
    yield "bandwidth", f"{format_bytes(device.memory_bytes_per_s)}/s"
    yield "last-level cache", format_bytes(device.l2_bytes)
    yield "host link", f"{format_bytes(device.link_bytes_per_s)}/s per direction"
    if device.peer_bytes_per_s > 0:
        yield "peer link", f"{format_bytes(device.peer_bytes_per_s)}/s both directions"
    yield "launches like", device.launch_generation
    yield "power", f"{format_digits(device.tdp_watts)} W"
    if device.notes:
        yield "notes", device.notes


def _with_unit(count: float, unit: str) -> str:
    text = format_count(count)
    figure = text.rstrip("kMGT")
    return f"{figure} {text[len(figure) :]}{unit}"


def _memory(device: DeviceSpec) -> str:
    # GPU memory is sold in GiB, whatever the box says.
    return f"{format_digits(device.memory_bytes / BYTES_PER_GIB)} GiB"


def _peak(device: DeviceSpec, precision: Precision) -> str:
    if not device.has_precision(precision):
        return "-"
    return format_count(device.peak_flop_per_s[precision])


CALIBRATION_SCHEMA_VERSION = 1
HOSTS_SCHEMA_VERSION = 1

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
        gpu_calibration: File of what was measured of this machine's GPU; empty without one.
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
        vector_flop_per_clock: fp32 FLOP of one core and clock; null where it is not known, as the
            two below, and no step is predicted for this CPU then.
        sustained_hz: Base clock, which all cores keep.
        memory_bytes_per_s: Of all channels of one socket.
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
    vector_flop_per_clock: float | None = None
    sustained_hz: float | None = None
    memory_bytes_per_s: float | None = None


class HostsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The table of CPUs, or one of them.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        hosts: In the order of the table.
        kinds: Kinds of machines; empty where one CPU was asked for.
    """

    schema_version: int
    hosts: tuple[Cpu, ...]
    kinds: tuple[HostKind, ...] = ()


def stored_calibration(
    calibration: HostCalibration,
    *,
    single_thread_speed: float,
    is_remembered: bool,
    other_load_fraction: float,
    gpu_calibration: str = "",
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
        gpu_calibration=gpu_calibration,
    )


def calibration_document(
    calibration: HostCalibration, *, single_thread_speed: float, notes: Sequence[str]
) -> Document:
    """Return what was measured of a host, what the model takes from it, and ``notes``."""
    host, figures = calibration.host, calibration.figures
    speed = format_digits(single_thread_speed, 2)
    spread = format_percent(math.expm1(host.log_sigma))
    measured = Table(
        (
            Column("measured, per call", [one.title for one in figures]),
            Column(
                "median (10–90 %)",
                [duration_with_interval(one.median_ns, one.low_ns, one.high_ns) for one in figures],
            ),
            Column(
                "used for", [one.used_for or "shown only" for one in figures], folds=True, least=12
            ),
        ),
        caption="What was measured",
    )
    taken = Table(
        (
            Column("what predictions take", [title for _, title in _COSTS]),
            Column("", [format_duration(getattr(host, field), 2) for field, _ in _COSTS]),
        ),
        caption="What predictions take",
    )
    end = (
        Line(f"A step takes this host what they give within ±{spread}, one sigma."),
        Line(printable(host.source, None), "dim"),
        *(Line(note, "dim") for note in notes),
    )
    compared = "the single-thread speed of the reference host, an EPYC 7742 or the like"
    return Document(
        title=printable(host.name),
        answers=(Line(printable(host.name), "bold"), Line(f"{speed}× {compared}")),
        blocks=(Section("", (measured,)), Section("", (taken, Lines(end)))),
    )


def busy_note(other_load_fraction: float) -> str:
    """Return what to say of figures that were taken on a busy machine."""
    return (
        f"Other processes used {format_percent(other_load_fraction)} of the processors, so these "
        "figures are not kept: try again when the machine is quiet."
    )


def stored_hosts(cpus: Sequence[HostCpu], kinds: Sequence[HostKind] = ()) -> HostsDocument:
    """Return CPUs and kinds of machines as a document."""
    hosts = (Cpu(**{field: getattr(cpu, field) for field in Cpu.__struct_fields__}) for cpu in cpus)
    return HostsDocument(
        schema_version=HOSTS_SCHEMA_VERSION, hosts=tuple(hosts), kinds=tuple(kinds)
    )


def hosts_document(cpus: Sequence[HostCpu], kinds: Sequence[HostKind] = ()) -> Document:
    """Return one line per kind of machine and per CPU, in the order given."""
    columns = {
        "host": [cpu.name for cpu in cpus],
        "core": [cpu.core for cpu in cpus],
        "year": [str(cpu.release_year) for cpu in cpus],
        "cores": [str(cpu.num_cores) for cpu in cpus],
        "boost": [f"{format_digits(cpu.boost_hz / 1e9)} GHz" for cpu in cpus],
        "speed": [f"{cpu.single_thread_speed:.2f}" for cpu in cpus],
        "fp32": [_cpu_peak(cpu) for cpu in cpus],
    }
    notes = (
        "speed: of one thread, boost clock × instructions per clock, against the reference.",
        "fp32: FLOP/s of all cores at the base clock, where it is known.",
        "Predict GPUs fed by one of them: breakeven check TARGET --host NAME",
        "The step on one whose fp32 is known: breakeven check TARGET --device NAME",
    )
    table = Table(
        tuple(
            Column(
                header,
                cells,
                is_number=header not in ("host", "core"),
                folds=header == "host",
                least=12,
            )
            for header, cells in columns.items()
        ),
        caption="CPUs that may feed GPUs",
        legend="\n".join(notes),
    )
    return Document(title="Hosts", blocks=(*([_kinds_table(kinds)] if kinds else []), table))


def _kinds_table(kinds: Sequence[HostKind]) -> Table:
    around = [math.exp(Z_90 * kind.log_sigma) for kind in kinds]
    factors = [
        f"{format_digits(kind.factor, 2)}× ({format_digits(kind.factor / off, 2)}–"
        f"{format_digits(kind.factor * off, 2)})"
        for kind, off in zip(kinds, around, strict=True)
    ]
    seen = [
        f"{len(kind.machines)}{', spread borrowed' * kind.is_spread_borrowed}" for kind in kinds
    ]
    return Table(
        (
            Column("kind", [kind.id for kind in kinds]),
            Column("machine", [kind.name for kind in kinds], folds=True, least=12),
            Column("host's work", factors),
            Column("machines seen", seen, folds=True, least=12),
        ),
        caption="Kinds of machines that feed GPUs",
        legend="host's work: over that of the same CPU on bare Linux (90 % of machines).\n"
        "A cloud machine has a typical server's CPU, a sandbox that of Colab.\n"
        "Predict GPUs in one of them: breakeven check TARGET --host KIND",
    )


def _cpu_peak(cpu: HostCpu) -> str:
    if cpu.vector_flop_per_clock is None or cpu.sustained_hz is None:
        return ""
    return format_count(cpu.num_cores * cpu.vector_flop_per_clock * cpu.sustained_hz)
