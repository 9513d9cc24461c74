"""GPUs, CPUs and kinds of machines: as tables, as sheets of a single one, and as stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from breakeven.device import DeviceSpec, HostCpu, HostKind, Precision
from breakeven.report.document import Column, Document, Line, Table
from breakeven.simulate import Z_90
from breakeven.units import BYTES_PER_GIB, format_bytes, format_count, format_digits

DEVICES_SCHEMA_VERSION = 1
HOSTS_SCHEMA_VERSION = 1


class DevicesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The catalogue of GPUs, or one of them.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        devices: Devices in catalogue order.
    """

    schema_version: int
    devices: tuple[DeviceSpec, ...]


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """A CPU that may feed GPUs.

    Args:
        id: Stable lower-case identifier: ``epyc-7742``.
        name: Common name.
        vendor: ``amd``, ``intel``, ``apple`` or ``arm``.
        core: Its microarchitecture: ``Zen 2``.
        num_cores: Physical cores of one socket.
        boost_hz: Highest clock of one core.
        release_year: Year of release.
        single_thread_speed: Speed of one thread, relative to the reference host.
        is_virtual: Whether it is a name that virtual machines report.
        aliases: Other names for it.
        source: Source of its figures.
        vector_flop_per_clock: fp32 FLOP per core and clock. If it or one of the two below is null
            (unknown), no step is predicted for this CPU.
        sustained_hz: Base clock, which all cores sustain.
        memory_bytes_per_s: Memory bandwidth of all channels of one socket.
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
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        hosts: CPUs in table order.
        kinds: Kinds of machines; empty if one CPU was requested.
    """

    schema_version: int
    hosts: tuple[Cpu, ...]
    kinds: tuple[HostKind, ...] = ()


def stored_devices(devices: Sequence[DeviceSpec]) -> DevicesDocument:
    """Return devices as stored."""
    return DevicesDocument(schema_version=DEVICES_SCHEMA_VERSION, devices=tuple(devices))


def stored_hosts(cpus: Sequence[HostCpu], kinds: Sequence[HostKind] = ()) -> HostsDocument:
    """Return CPUs and kinds of machines as stored."""
    hosts = (Cpu(**{field: getattr(cpu, field) for field in Cpu.__struct_fields__}) for cpu in cpus)
    return HostsDocument(
        schema_version=HOSTS_SCHEMA_VERSION, hosts=tuple(hosts), kinds=tuple(kinds)
    )


def devices_document(devices: Sequence[DeviceSpec]) -> Document:
    """Return one line per device, in the order given."""
    columns = (
        # In a narrow terminal, cut names first, then drop the architecture; never cut a figure.
        Column("device", [one.name for one in devices], least=18),
        Column("architecture", [one.architecture for one in devices], optional=1),
        Column("year", [str(one.release_year) for one in devices], is_number=True),
        Column("memory", [_memory(one) for one in devices], is_number=True),
        Column("bandwidth", [_bandwidth(one) for one in devices], is_number=True),
        *(
            Column(precision.value, [_peak(one, precision) for one in devices], is_number=True)
            for precision in (Precision.FP32, Precision.FP16)
        ),
    )
    legend = (
        "fp32, fp16: dense peak in FLOP/s, fp16 on tensor cores where there are any.\n"
        "One device in full, with sources: breakeven devices NAME"
    )
    return Document(title="Devices", blocks=(Table(columns, legend=legend),))


def device_document(device: DeviceSpec) -> Document:
    """Return everything in the catalogue about one device, with its sources."""
    labels, values = zip(*_sheet(device), strict=True)
    table = Table(
        (Column("figure", labels, style="dim"), Column("value", values, least=12)),
        has_header=False,
    )
    # Keep each URL whole, so that it can be clicked or copied.
    sources = (Line(f"  {source}", is_whole=True) for source in device.sources)
    return Document(
        title=device.name,
        answers=(Line(device.name, "bold"),),
        blocks=(table, Line("sources", "dim"), *sources),
    )


def _sheet(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    chip = f" ({device.chip})" if device.chip else ""
    yield "id", device.id
    if device.aliases:
        yield "also", ", ".join(device.aliases)
    yield "vendor", f"{device.vendor}, {device.market}, {device.release_year}"
    yield "architecture", f"{device.architecture}{chip}"
    yield "units", f"{device.num_sms} at {_with_unit(device.clock_hz, 'Hz')}"
    for precision, rate in device.peak_flop_per_s.items():
        yield precision.value, f"{_with_unit(rate, 'FLOP/s')} dense"
    yield "memory", _memory(device)
    yield "bandwidth", _bandwidth(device)
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
    # GPU memory comes in GiB, even if it is labelled GB.
    return f"{format_digits(device.memory_bytes / BYTES_PER_GIB)} GiB"


def _bandwidth(device: DeviceSpec) -> str:
    return f"{format_bytes(device.memory_bytes_per_s)}/s"


def _peak(device: DeviceSpec, precision: Precision) -> str:
    if not device.has_precision(precision):
        return "-"
    return format_count(device.peak_flop_per_s[precision])


def hosts_document(cpus: Sequence[HostCpu], kinds: Sequence[HostKind] = ()) -> Document:
    """Return one line per kind of machine and per CPU, in the order given."""
    peaks = [
        ""
        if cpu.vector_flop_per_clock is None or cpu.sustained_hz is None
        else format_count(cpu.num_cores * cpu.vector_flop_per_clock * cpu.sustained_hz)
        for cpu in cpus
    ]
    boosts = [f"{format_digits(cpu.boost_hz / 1e9)} GHz" for cpu in cpus]
    columns = (
        Column("host", [cpu.name for cpu in cpus], least=12),
        Column("core", [cpu.core for cpu in cpus]),
        Column("year", [str(cpu.release_year) for cpu in cpus], is_number=True),
        Column("cores", [str(cpu.num_cores) for cpu in cpus], is_number=True),
        Column("boost", boosts, is_number=True),
        Column("speed", [f"{cpu.single_thread_speed:.2f}" for cpu in cpus], is_number=True),
        Column("fp32", peaks, is_number=True),
    )
    legend = (
        "speed: of one thread, boost clock × instructions per clock, against the reference.\n"
        "fp32: FLOP/s of all cores at the base clock, where it is known.\n"
        "Predict GPUs fed by one of them: breakeven check TARGET --host NAME\n"
        "The step on one whose fp32 is known: breakeven check TARGET --device NAME"
    )
    table = Table(columns, legend=legend)
    return Document(title="Hosts", blocks=(*([_kinds_table(kinds)] if kinds else []), table))


def _kinds_table(kinds: Sequence[HostKind]) -> Table:
    factors: list[str] = []
    for kind in kinds:
        around = math.exp(Z_90 * kind.log_sigma)
        low, factor, high = (format_digits(kind.factor * by, 2) for by in (1 / around, 1.0, around))
        factors.append(f"{factor}× ({low}–{high})")
    seen = [
        f"{len(kind.machines)}{', spread borrowed' * kind.is_spread_borrowed}" for kind in kinds
    ]
    return Table(
        (
            Column("kind", [kind.id for kind in kinds]),
            Column("machine", [kind.name for kind in kinds], least=12),
            Column("host's work", factors),
            Column("machines seen", seen, least=12),
        ),
        legend="host's work: over that of the same CPU on bare Linux (90 % of machines).\n"
        "A cloud machine has a typical server's CPU, a sandbox that of Colab.\n"
        "Predict GPUs in one of them: breakeven check TARGET --host KIND",
    )
