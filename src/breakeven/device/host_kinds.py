"""Kinds of hosts that feed GPUs: their time to issue work, and its spread between machines."""

from __future__ import annotations

import math
import statistics
import tomllib
from functools import cache
from importlib import resources

import msgspec


class SeenMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine whose steps were measured.

    Args:
        name: Description of the machine.
        factor: Host time within steps, over that of the same CPU on bare Linux; over the
            reference host's if a hypervisor hides the CPU.
        num_rows: Steps behind the factor.
        source: Source of these steps.
        handoff_ns: Extra time of a backward pass, in nanoseconds; 0 if the factor includes it.
    """

    name: str
    factor: float
    num_rows: int
    source: str
    handoff_ns: float = 0.0


class HostKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine; it predicts steps of unmeasured machines of that kind.

    Args:
        id: Stable lower-case identifier: ``cloud``.
        name: Its usual name.
        machines: The measured machines.
        factor: Host time of operators, over the same CPU on bare Linux; over ``cpu``'s if the
            machine is rented.
        log_sigma: Standard deviation of the factor's logarithm between machines.
        handoff_ns: Extra time of a backward pass, in nanoseconds, before the factor.
        is_spread_borrowed: Whether fewer than two machines were measured, so that the spread is
            the widest of all kinds.
        is_rented: Whether such machines are rented, with a server's CPU.
        cpu: The rented machine's CPU; empty for the reference host's.
        aliases: Other names of the kind.
    """

    id: str
    name: str
    machines: tuple[SeenMachine, ...]
    factor: float
    log_sigma: float
    handoff_ns: float
    is_spread_borrowed: bool
    is_rented: bool = False
    cpu: str = ""
    aliases: tuple[str, ...] = ()


class KindEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind as the file stores it; see `HostKind`."""

    id: str
    name: str
    machines: tuple[SeenMachine, ...]
    is_rented: bool = False
    cpu: str = ""
    aliases: tuple[str, ...] = ()


# Two machines that agree by chance do not show that a third one would agree too. Judgement.
_LEAST_LOG_SPREAD = 0.25


@cache
def load_host_kinds() -> tuple[HostKind, ...]:
    """Return all kinds, in the order of the file."""
    text = resources.files("breakeven.device").joinpath("host_kinds.toml").read_text("utf-8")
    return kinds_of(msgspec.convert(tomllib.loads(text)["kind"], tuple[KindEntry, ...]))


def kinds_of(entries: tuple[KindEntry, ...]) -> tuple[HostKind, ...]:
    """Return kinds from their machines; a kind with fewer than two borrows the widest spread."""
    spreads = {
        entry.id: max(
            _LEAST_LOG_SPREAD, statistics.stdev(math.log(m.factor) for m in entry.machines)
        )
        for entry in entries
        if len(entry.machines) > 1
    }
    widest = max(spreads.values(), default=_LEAST_LOG_SPREAD)
    return tuple(
        HostKind(
            **msgspec.structs.asdict(entry),
            factor=statistics.geometric_mean([seen.factor for seen in entry.machines]),
            # Prediction interval: the likely distance of one more machine from the mean.
            log_sigma=spreads.get(entry.id, widest) * math.sqrt(1 + 1 / len(entry.machines)),
            handoff_ns=max(seen.handoff_ns for seen in entry.machines),
            is_spread_borrowed=entry.id not in spreads,
        )
        for entry in entries
    )


def find_host_kind(name: str) -> HostKind | None:
    """Return the kind called ``name``, in any case; None if there is none."""
    wanted = name.strip().lower()
    return next((kind for kind in load_host_kinds() if wanted in (kind.id, *kind.aliases)), None)


def find_kind(kind_id: str) -> HostKind:
    """Return the kind with an id.

    Raises:
        KeyError: No kind has this id.
    """
    return {kind.id: kind for kind in load_host_kinds()}[kind_id]
