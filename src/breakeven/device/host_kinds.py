"""Kinds of machines that feed GPUs: how long they take to issue work, and how far they differ."""

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
        name: What it is.
        factor: What its host's work within steps took, over that of its CPU on bare Linux, or of
            the reference host where a hypervisor hides the CPU.
        num_rows: Steps that say so.
        source: Where they are from.
        handoff_ns: What a backward pass took besides, in nanoseconds; 0 where it is in the factor.
    """

    name: str
    factor: float
    num_rows: int
    source: str
    handoff_ns: float = 0.0


class HostKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine, as steps of a machine that was not seen are predicted.

    Args:
        id: Stable lower-case identifier: ``cloud``.
        name: What people call it.
        machines: Those that were measured.
        factor: What operators take the host, over the same CPU on bare Linux; over `cpu`'s,
            where the machine is rented.
        log_sigma: Standard deviation of the factor's logarithm between machines.
        handoff_ns: What a backward pass takes besides, in nanoseconds, before the factor.
        is_spread_borrowed: Whether fewer than two machines were seen, so that the spread is the
            widest of all kinds.
        is_rented: Whether such machines are rented, with a server's CPU.
        cpu: That CPU; empty for the reference host's.
        aliases: Other names for it.
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
    """A kind as the file has it, as in `HostKind`."""

    id: str
    name: str
    machines: tuple[SeenMachine, ...]
    is_rented: bool = False
    cpu: str = ""
    aliases: tuple[str, ...] = ()


# Two machines of a kind that happen to agree do not make a third one agree as well. Judgement.
_LEAST_LOG_SPREAD = 0.25


@cache
def load_host_kinds() -> tuple[HostKind, ...]:
    """Return all kinds, in the order of the file."""
    text = resources.files("breakeven.device").joinpath("host_kinds.toml").read_text("utf-8")
    return kinds_of(msgspec.convert(tomllib.loads(text)["kind"], tuple[KindEntry, ...]))


def kinds_of(entries: tuple[KindEntry, ...]) -> tuple[HostKind, ...]:
    """Return kinds from their machines; one with fewer than two borrows the widest spread."""
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
            # How far one machine more is likely to be from the mean of these.
            log_sigma=spreads.get(entry.id, widest) * math.sqrt(1 + 1 / len(entry.machines)),
            handoff_ns=max(seen.handoff_ns for seen in entry.machines),
            is_spread_borrowed=entry.id not in spreads,
        )
        for entry in entries
    )


def find_host_kind(name: str) -> HostKind | None:
    """Return the kind called ``name``, in any case; None where there is none."""
    wanted = name.strip().lower()
    return next((kind for kind in load_host_kinds() if wanted in (kind.id, *kind.aliases)), None)


def find_kind(kind_id: str) -> HostKind:
    """Return the kind with an id.

    Raises:
        KeyError: There is none.
    """
    return {kind.id: kind for kind in load_host_kinds()}[kind_id]
