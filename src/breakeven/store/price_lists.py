"""Current prices of the machines that breakeven knows, fetched by the optional package gpuhunt."""

from __future__ import annotations

import logging
import re
import socket
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from breakeven.errors import BreakevenError
from breakeven.money import Machine, PriceSource, shipped_prices, user_prices
from breakeven.store.report_file import write_document

# Shipped prices are those of regions in the USA too.
_IN_THE_USA = re.compile(r"^us\W|us\d?$", re.IGNORECASE)
# gpuhunt has no time limit of its own.
_NETWORK_LIMIT_S = 30.0


def refresh_prices() -> Path:
    """Replace the user's price file by current prices, and return its path.

    It holds only current prices; `known_prices` adds those of machines that the lists lack.

    Raises:
        BreakevenError: gpuhunt is not installed, no list could be fetched, or the file cannot be
            written. An earlier file remains then.
    """
    catalog, shipped = _fetched_catalog(), shipped_prices()
    sources: list[PriceSource] = []
    machines: list[Machine] = []
    for source in shipped.sources:
        if source.id not in catalog.catalog:
            continue
        offers = catalog.query(provider=source.id, cpu_arch="x86")
        known = [machine for machine in shipped.machines if machine.provider == source.id]
        current = [one for machine in known if (one := _at_current_price(machine, offers))]
        if not current:
            continue
        # The version starts with its date: 20260818-42.
        version = catalog.catalog[source.id].version
        day = date.fromisoformat(version.partition("-")[0]).isoformat()
        origin = f"https://github.com/dstackai/gpuhunt {version}"
        sources.append(replace(source, date=day, source=origin))
        machines += current
    if not machines:
        raise BreakevenError("gpuhunt lists no machine that breakeven knows; prices did not change")
    prices = replace(shipped, sources=tuple(sources)).with_machines(machines)
    path = user_prices()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "name another file: BREAKEVEN_PRICES=FILE"
        raise BreakevenError(f"cannot write {path}: {error.strerror}", hint=hint) from error
    write_document(path, msgspec.json.encode(prices), force=True)
    return path


def _fetched_catalog() -> Any:
    """Return gpuhunt's catalogue with the lists that could be fetched."""
    try:
        import gpuhunt  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BreakevenError(
            "current prices need the package gpuhunt", hint="pip install 'breakeven[prices]'"
        ) from error
    # It logs a traceback for each list that it cannot fetch.
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_LIMIT_S)
    catalog: Any = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
    try:
        catalog.load()
    except (gpuhunt.GPUHuntError, OSError) as error:
        raise BreakevenError(
            f"cannot fetch current prices: {error.__cause__ or error}",
            hint="check the network and try again; the prices have not changed",
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    return catalog


def _at_current_price(machine: Machine, offers: list[Any]) -> Machine | None:
    """Return a machine at the price of its cheapest region, one in the USA if possible."""
    same = [
        offer
        for offer in offers
        if (offer.instance_name, offer.gpu_count) == (machine.name, machine.num_gpus)
        # Such a machine is reserved for dates, at a price of its own.
        and not offer.provider_data.get("is_dws_calendar_mode")
    ]
    on_demand = [offer for offer in same if not offer.spot and offer.price > 0]
    if not on_demand:
        return None
    best = min(on_demand, key=lambda one: (not _IN_THE_USA.search(one.location), one.price))
    spots = [one.price for one in same if one.spot and one.location == best.location]
    spot = min(spots, default=0.0)
    # Google Cloud's locations are zones, us-central1-a.
    region = re.sub(r"-[a-z]$", "", best.location)
    return replace(machine, usd_per_hour=best.price, spot_usd_per_hour=spot, region=region)
