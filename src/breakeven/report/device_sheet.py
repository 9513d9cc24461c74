"""The device catalogue, as a table, as one device in full, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.device import DeviceSpec, Precision
from breakeven.report.text import shorten
from breakeven.units import BYTES_PER_GIB, format_bytes, format_count, format_digits

DEVICES_SCHEMA_VERSION = 1

_HEADERS = ("device", "architecture", "year", "memory", "bandwidth", "fp32", "fp16")
_GAP = 2
_MIN_NAME_WIDTH = 18


class DevicesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The catalogue of GPUs, or one of them.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        devices: In the order of the catalogue.
    """

    schema_version: int
    devices: tuple[DeviceSpec, ...]


def devices_document(devices: Sequence[DeviceSpec]) -> DevicesDocument:
    """Return devices as a document; rates are per second."""
    return DevicesDocument(schema_version=DEVICES_SCHEMA_VERSION, devices=tuple(devices))


def render_devices(devices: Sequence[DeviceSpec], console: Console) -> None:
    """Write one line per device, in the order given."""
    rows = [dict(zip(_HEADERS, _row(device), strict=True)) for device in devices]
    widths = {header: max(len(header), *(len(row[header]) for row in rows)) for header in _HEADERS}
    shown = list(_HEADERS)

    def name_width() -> int:
        others = sum(widths[header] + _GAP for header in shown[1:])
        return min(widths["device"], console.width - others)

    # In a narrow terminal names are cut, then the architecture goes; never a figure.
    if name_width() < _MIN_NAME_WIDTH:
        shown.remove("architecture")
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for header in shown:
        table.add_column(
            header, justify="left" if header in ("device", "architecture") else "right"
        )
    for row in rows:
        row["device"] = shorten(row["device"], max(name_width(), 1))
        table.add_row(*(Text(row[header], no_wrap=True) for header in shown))
    console.print(table)
    console.print(
        Text(
            "fp32, fp16: dense peak in FLOP/s, fp16 on tensor cores where there are any.\n"
            "One device in full, with sources: breakeven devices NAME",
            style="dim",
        )
    )


def render_device(device: DeviceSpec, console: Console) -> None:
    """Write everything that the catalogue knows about one device, with its sources."""
    console.print(Text(device.name, style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _sheet(device):
        table.add_row(label, Text(value))
    console.print(table)
    console.print(Text("sources", style="dim"))
    for source in device.sources:
        # Soft wrap keeps an address in one piece, to be clicked or copied.
        console.print(Text(f"  {source}"), soft_wrap=True)


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
