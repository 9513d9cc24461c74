"""Machines that one can rent, and their prices."""

from __future__ import annotations

import datetime
import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
from msgspec.structs import replace

from breakeven.device import find_device, find_host_cpu, known_device
from breakeven.errors import BreakevenError, Caveat, UsageError

PRICES_VERSION = 1
# Prices that are older than this get a caveat.
STALE_DAYS = 90
# Replaces the path of the user's refreshed prices.
PRICES_VARIABLE = "BREAKEVEN_PRICES"

# Ends the id of a shipped list, beyond the provider's refreshed one.
REST = "-rest"

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class PriceSource(msgspec.Struct, frozen=True, kw_only=True):
    """The price list of a provider.

    Args:
        id: The provider's identifier, ``aws``; after a refresh, ``aws-rest`` is the shipped list.
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
    billing_s: _Positive
    least_billed_s: _NotNegative


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is rented as a whole.

    Args:
        provider: Id of its `PriceSource`.
        name: The provider's name of it.
        num_vcpus: Virtual processors.
        memory_bytes: Memory of the host.
        usd_per_hour: Price on demand.
        gpu: Catalogue id of its GPUs; empty without one.
        num_gpus: Number of GPUs.
        gpu_fraction: Fraction of a GPU that each of them is.
        cpu: Name of its processor, as in ``breakeven devices --hosts``; empty if unknown.
        spot_usd_per_hour: Price if the provider may take it away; 0 if unknown.
        region: Region of the price.
        threads_per_core: Virtual processors of one core.
    """

    provider: str
    name: str
    num_vcpus: Annotated[int, msgspec.Meta(ge=1)]
    memory_bytes: Annotated[int, msgspec.Meta(ge=1)]
    usd_per_hour: _Positive
    gpu: str = ""
    num_gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    gpu_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    cpu: str = ""
    spot_usd_per_hour: _NotNegative = 0.0
    region: str = ""
    threads_per_core: Annotated[int, msgspec.Meta(ge=1, le=2)] = 2

    @property
    def num_cores(self) -> int:
        """Physical cores, at least 1."""
        return max(self.num_vcpus // self.threads_per_core, 1)

    @property
    def cloud(self) -> str:
        """The provider, whatever part of its list the price is from."""
        return self.provider.removesuffix(REST)


class PriceFile(msgspec.Struct, frozen=True, kw_only=True):
    """Machines with prices, and the lists that these come from.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        sources: The providers' lists.
        machines: Machines of these providers, each once.
    """

    schema_version: int
    sources: tuple[PriceSource, ...]
    machines: tuple[Machine, ...]

    def source_of(self, machine: Machine) -> PriceSource:
        """Return the list that a machine's price comes from."""
        return next(source for source in self.sources if source.id == machine.provider)

    def with_machines(self, machines: Iterable[Machine]) -> PriceFile:
        """Return the file with these machines alone, and the lists that they need."""
        machines = tuple(machines)
        used = {machine.provider for machine in machines}
        sources = tuple(source for source in self.sources if source.id in used)
        return replace(self, sources=sources, machines=machines)


@cache
def shipped_prices() -> PriceFile:
    """Return the prices of the package."""
    text = resources.files("breakeven.money").joinpath("prices.json").read_bytes()
    return msgspec.json.decode(text, type=PriceFile)


@cache
def gpu_usd_per_hour(name: str) -> float | None:
    """Return the lowest shipped price of a machine with one whole GPU; None if there is none.

    Args:
        name: A GPU, as `known_device` finds it.
    """
    gpu = known_device(name)
    prices = [
        machine.usd_per_hour
        for machine in shipped_prices().machines
        if gpu is not None and machine.gpu == gpu.id
        if machine.num_gpus == 1 and machine.gpu_fraction == 1
    ]
    return min(prices, default=None)


def user_prices() -> Path:
    """Return the path of this user's refreshed prices, a file that may be absent."""
    path = os.environ.get(PRICES_VARIABLE)
    return Path(path) if path else platformdirs.user_config_path("breakeven") / "prices.json"


def known_prices() -> PriceFile:
    """Return the newer of the user's and the shipped prices of each provider.

    A machine that only the shipped list has stays, under the shipped list's date.

    Raises:
        BreakevenError: The user's file is damaged.
    """
    shipped, path = shipped_prices(), user_prices()
    if not path.is_file():
        return shipped
    own, days = read_prices(path), {source.id: source.date for source in shipped.sources}
    # Undated prices are not known to be older. An earlier breakeven may have stored its own rest.
    fresh = {
        one.id
        for one in own.sources
        if not one.id.endswith(REST) and (not one.date or one.date >= days.get(one.id, ""))
    }
    own = own.with_machines(one for one in own.machines if one.provider in fresh)
    names = {(one.provider, one.name.casefold()) for one in own.machines}
    rest = tuple(
        replace(one, provider=one.provider + REST) if one.provider in fresh else one
        for one in shipped.machines
        if (one.provider, one.name.casefold()) not in names
    )
    sources = (
        replace(one, id=one.id + REST, name=f"{one.name} (no newer price)")
        if one.id in fresh
        else one
        for one in shipped.sources
    )
    both = replace(own, sources=(*own.sources, *sources))
    return both.with_machines((*own.machines, *rest))


def read_prices(path: Path) -> PriceFile:
    """Return the prices of a file of the user's, of the same form.

    Raises:
        BreakevenError: It cannot be read, is not of this form, or contradicts itself or the tables
            of GPUs and CPUs.
    """
    hint = "`breakeven prices --json` prints a file of the right form"
    try:
        prices = msgspec.json.decode(path.read_bytes(), type=PriceFile)
        if prices.schema_version != PRICES_VERSION:
            raise ValueError(f"schema_version {prices.schema_version} is not {PRICES_VERSION}")
        for source in prices.sources:
            # Refuse a date that is none, as no figure of the schema does.
            age_days(source, datetime.date.min)
        if len({source.id for source in prices.sources}) < len(prices.sources):
            raise ValueError("two of its sources have the same id")
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BreakevenError(f"{path} holds no prices: {error}", hint=hint) from error
    return replace(prices, machines=_sound_machines(prices, path))


def _sound_machines(prices: PriceFile, path: Path) -> tuple[Machine, ...]:
    """Return the machines of a file, with catalogue ids of their GPUs."""
    ids = {source.id for source in prices.sources}
    sound: dict[tuple[str, str], Machine] = {}
    for machine in prices.machines:
        key = machine.provider, machine.name.casefold()
        try:
            if machine.provider not in ids:
                raise BreakevenError(f"no source has the id “{machine.provider}”")
            if key in sound:
                raise BreakevenError("it is listed twice")
            if bool(machine.gpu) != bool(machine.num_gpus):
                raise BreakevenError("of gpu and num_gpus, only one is set")
            gpu = find_device(machine.gpu).id if machine.gpu else ""
            if machine.cpu:
                find_host_cpu(machine.cpu)
        except BreakevenError as error:
            raise BreakevenError(
                f"{path}: machine “{machine.name}”: {error.message}", hint=error.hint
            ) from error
        sound[key] = replace(machine, gpu=gpu)
    return tuple(sound.values())


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
    if not prices.machines:
        raise UsageError("the list of prices has no machines", hint="breakeven prices --json has")
    known = {machine.cloud for machine in prices.machines}
    for provider in providers:
        if provider not in known:
            raise UsageError(
                f"no prices of “{provider}” are known",
                hint=f"providers: {', '.join(sorted(known))}",
            )
    own = {name.casefold(): price for name, price in (usd_per_hour or {}).items()}
    by_name = {machine.name.casefold() for machine in prices.machines}
    for name, price in own.items():
        if not 0 < price < math.inf:
            raise UsageError(f"{name} at ${price:g} an hour: a price is above 0")
        _ensure_known(name, by_name)
    chosen = [machine for machine in prices.machines if not providers or machine.cloud in providers]
    if names:
        wanted = tuple(_matching(chosen, name) for name in names)
        chosen = [machine for machine in chosen if any(machine in found for found in wanted)]
    return tuple(
        replace(machine, usd_per_hour=own.get(machine.name.casefold(), machine.usd_per_hour))
        for machine in chosen
    )


def _matching(machines: Sequence[Machine], name: str) -> tuple[Machine, ...]:
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
            hint=f"did you mean {' or '.join(close)}?" if close else "choose from breakeven prices",
        )


def price_caveats(sources: Iterable[PriceSource], today: datetime.date) -> tuple[Caveat, ...]:
    """Return a caveat for each list that is undated or older than `STALE_DAYS`."""
    caveats: list[Caveat] = []
    for source in sources:
        age, prices = age_days(source, today), f"The prices of {source.name} are"
        if age is None:
            caveats.append(Caveat(code="undated-prices", message=f"{prices} an undated copy."))
        elif age > STALE_DAYS:
            old = f"{prices} {age} days old ({source.date})."
            caveats.append(Caveat(code="stale-prices", message=old))
    return tuple(caveats)


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
    # Rounding first keeps three units of 0.1 s from counting as four.
    units = math.ceil(round(seconds / source.billing_s, 6))
    billed_s = max(source.least_billed_s, units * source.billing_s)
    return billed_s / 3600 * machine.usd_per_hour
