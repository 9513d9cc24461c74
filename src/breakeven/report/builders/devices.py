"""The catalogue of devices: as a table, as one device in full, and as stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from breakeven.device import DeviceSpec, Precision
from breakeven.report.document import Column, Document, Line, Lines, Table
from breakeven.units import BYTES_PER_GIB, format_bytes, format_count, format_digits

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
                least=18 if header == "device" else None,
                joins=1 if header == "architecture" else 0,
            )
            for header, cells in zip(_HEADERS, columns, strict=True)
        ),
        caption="Devices whose steps can be predicted",
        legend="\n".join(notes),
        indent=0,
    )
    return Document(title="Devices", blocks=(table,))


def device_document(device: DeviceSpec) -> Document:
    """Return everything that the catalogue knows about one device, with its sources."""
    labels, values = zip(*_sheet(device), strict=True)
    table = Table(
        (Column("figure", labels, style="dim"), Column("value", values, folds=True, least=12)),
        caption=device.name,
        has_header=False,
        indent=0,
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
