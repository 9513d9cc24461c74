"""Machines for rent as a table, with the lists that their prices come from."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from breakeven.device import find_device, find_host_cpu
from breakeven.money import Machine, PriceFile, price_caveats
from breakeven.report.document import Column, Document, Line, Table
from breakeven.report.text import printable
from breakeven.units import BYTES_PER_GIB, NS_PER_S, format_digits, format_time


def cheapest_machines(prices: PriceFile) -> PriceFile:
    """Return the cheapest machine of each GPU and of each CPU without GPU.

    A whole GPU precedes a fraction of it, whatever the prices.
    """
    best: dict[tuple[str, str], Machine] = {}
    for machine in sorted(prices.machines, key=lambda one: (-one.gpu_fraction, one.usd_per_hour)):
        best.setdefault((machine.gpu, "" if machine.gpu else machine.cpu), machine)
    return prices.with_machines(best.values())


def prices_document(prices: PriceFile, today: datetime.date, legend: str = "") -> Document:
    """Return one line per machine, cheapest first, and the date and source of each list.

    Args:
        prices: Machines to show.
        today: Day that the age of the prices refers to.
        legend: Further lines below the table.
    """
    legend = "$/h: on demand. Spot machines may be taken away. GiB: memory of the host.\n" + legend
    machines = sorted(prices.machines, key=lambda machine: machine.usd_per_hour)
    spots = [machine.spot_usd_per_hour for machine in machines]
    memories = [machine.memory_bytes / BYTES_PER_GIB for machine in machines]
    columns = (
        Column("machine", [printable(one.name) for one in machines], least=14),
        Column("GPU or CPU", [_processor(one) for one in machines], least=16),
        Column("vCPU", [f"{one.num_vcpus}" for one in machines], is_number=True),
        Column("GiB", [f"{gib:.0f}" for gib in memories], is_number=True),
        Column("$/h", [f"{one.usd_per_hour:,.3f}" for one in machines], is_number=True),
        Column("spot", [f"{spot:,.3f}" if spot else "-" for spot in spots], is_number=True),
        Column("cloud", [printable(one.cloud) for one in machines]),
        Column("region", [printable(one.region) or "-" for one in machines], optional=1),
    )
    return Document(
        title="Prices",
        warnings=[caveat.message for caveat in price_caveats(prices.sources, today)],
        blocks=(Table(columns, legend=legend), Line("price lists", "dim"), *_lists(prices)),
    )


def _processor(machine: Machine) -> str:
    if not machine.gpu:
        return find_host_cpu(machine.cpu).name if machine.cpu else "unknown CPU"
    fraction = machine.gpu_fraction
    part = f"1/{format_digits(1 / fraction)} of " if fraction < 1 else ""
    count = f"{machine.num_gpus} × " if machine.num_gpus > 1 else ""
    return count + part + find_device(machine.gpu).name


def _lists(prices: PriceFile) -> Iterator[Line]:
    for source in prices.sources:
        regions = sorted({one.region for one in prices.machines if one.provider == source.id})
        places = printable(", ".join(filter(None, regions)))
        unit, least = (format_time(s * NS_PER_S) for s in (source.billing_s, source.least_billed_s))
        billing = f"billed in units of {unit}" + (f", at least {least}" if least != unit else "")
        facts = (source.date or "undated copy", places, billing)
        yield Line(f"{printable(source.name)}: {'; '.join(filter(None, facts))}", indent=2)
        # Keep each address whole, so that it can be clicked or copied.
        yield Line(f"    {printable(source.source, None)}", "dim", is_whole=True)
