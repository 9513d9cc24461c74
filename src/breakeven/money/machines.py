"""Machines that one can rent, and their prices."""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
from msgspec.structs import replace

from breakeven.device import known_device
from breakeven.errors import BreakevenError, UsageError

PRICES_VERSION = 1
# Prices that are older than this get a caveat.
STALE_DAYS = 90


class PriceSource(msgspec.Struct, frozen=True, kw_only=True):
    """The price list of a provider.

    Args:
        id: The provider's identifier: ``aws``.
        name: Its usual name.
        date: Day of the prices, ISO 8601; empty if unknown.
        source: The list, and its licence.
        billing_s: Unit of paid time, in seconds.
        least_billed_s: Least paid time, in seconds.
    """

    id: str
    name: str
    date: str
    source: str
    billing_s: float
    least_billed_s: float


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine that is rented as a whole.

    Args:
        provider: Id of its `PriceSource`.
        name: The provider's name of it.
        num_vcpus: Virtual processors; usually two are one core.
        memory_bytes: Memory of the host.
        usd_per_hour: Price on demand.
        gpu: Catalogue id of its GPUs; empty without one.
        num_gpus: Number of GPUs.
        gpu_fraction: Fraction of a GPU that each of them is.
        cpu: Name of its processor, as in ``breakeven devices --hosts``; empty if unknown.
        spot_usd_per_hour: Price if the provider may take it away; 0 if unknown.
        region: Region of the price.
    """

    provider: str
    name: str
    num_vcpus: int
    memory_bytes: int
    usd_per_hour: float
    gpu: str = ""
    num_gpus: int = 0
    gpu_fraction: float = 1.0
    cpu: str = ""
    spot_usd_per_hour: float = 0.0
    region: str = ""
    threads_per_core: int = 2


class PriceFile(msgspec.Struct, frozen=True, kw_only=True):
    """Machines with prices, and the lists that these come from."""

    schema_version: int
    sources: tuple[PriceSource, ...]
    machines: tuple[Machine, ...]

    def source_of(self, machine: Machine) -> PriceSource:
        """Return the list that a machine's price comes from."""
        return next(source for source in self.sources if source.id == machine.provider)


@cache
def shipped_prices() -> PriceFile:
    """Return the prices of the package."""
    text = resources.files("breakeven.money").joinpath("prices.json").read_bytes()
    return msgspec.json.decode(text, type=PriceFile)


def read_prices(path: Path) -> PriceFile:
    """Return the prices of a file of the user's, of the same form.

    Raises:
        BreakevenError: It cannot be read, or is not of this form.
    """
    try:
        prices = msgspec.json.decode(path.read_bytes(), type=PriceFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise BreakevenError(
            f"{path} holds no prices: {error}",
            hint="`breakeven prices --json` prints a file of the right form.",
        ) from error
    if prices.schema_version != PRICES_VERSION:
        raise BreakevenError(
            f"{path} has schema_version {prices.schema_version}; this breakeven reads "
            f"{PRICES_VERSION}."
        )
    return prices


def select_machines(
    prices: PriceFile,
    names: Sequence[str] = (),
    providers: Sequence[str] = (),
    usd_per_hour: Mapping[str, float] | None = None,
) -> tuple[Machine, ...]:
    """Return the machines that are meant, with prices of the user's in place of the listed ones.

    Args:
        prices: All machines.
        names: Of machines, or of GPUs as `breakeven devices` has them, or ``cpu``; none for all.
        providers: Ids of providers; none for all.
        usd_per_hour: Own prices by name of machine.

    Raises:
        UsageError: A name means no machine, or a price is not positive.
    """
    known = {source.id: source for source in prices.sources}
    for provider in providers:
        if provider not in known:
            raise UsageError(
                f"no prices of “{provider}” are known",
                hint=f"providers: {', '.join(known)}",
            )
    own = {name.casefold(): price for name, price in (usd_per_hour or {}).items()}
    by_name = {machine.name.casefold() for machine in prices.machines}
    for name, price in own.items():
        if not 0 < price < math.inf:
            raise UsageError(f"{name} at ${price:g} an hour: a price is above 0")
        _ensure_known(name, by_name)
    chosen = [
        machine for machine in prices.machines if not providers or machine.provider in providers
    ]
    if names:
        wanted = tuple(_matching(chosen, name) for name in names)
        chosen = [machine for machine in chosen if any(machine in found for found in wanted)]
    return tuple(
        replace(machine, usd_per_hour=own.get(machine.name.casefold(), machine.usd_per_hour))
        for machine in chosen
    )


def _matching(machines: Iterable[Machine], name: str) -> tuple[Machine, ...]:
    machines = tuple(machines)
    folded = name.casefold()
    found = tuple(machine for machine in machines if machine.name.casefold() == folded)
    if not found and folded == "cpu":
        found = tuple(machine for machine in machines if not machine.num_gpus)
    if not found and (gpu := known_device(name)) is not None:
        found = tuple(machine for machine in machines if machine.gpu == gpu.id)
    if not found:
        _ensure_known(folded, {machine.name.casefold() for machine in machines})
    return found


def _ensure_known(name: str, known: Iterable[str]) -> None:
    known = tuple(known)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        raise UsageError(
            f"no machine or GPU “{name}” has a price here",
            hint=f"did you mean {' or '.join(close)}?" if close else "`breakeven prices` lists all",
        )


def age_days(source: PriceSource, today: datetime.date) -> int | None:
    """Return how old prices are; None if their date is unknown."""
    return (today - datetime.date.fromisoformat(source.date)).days if source.date else None


def billed_usd(machine: Machine, source: PriceSource, seconds: float) -> float:
    """Return what so many seconds cost, in the units that the provider bills.

    Args:
        machine: Its price counts as a whole.
        source: The provider's units.
        seconds: From start to end of the machine.
    """
    billed_s = max(source.least_billed_s, math.ceil(seconds / source.billing_s) * source.billing_s)
    return billed_s / 3600 * machine.usd_per_hour
