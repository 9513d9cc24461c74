"""The shipped table of CPUs, and how a name that a person or a system gives finds its CPU."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources

import msgspec

from breakeven.errors import BreakevenError

_HINT = "Run `breakeven devices --hosts` for all names."
_MAX_LISTED = 8  # longer lists of candidates are no longer read
_MAX_NEAR = 4
_NEAR_CUTOFF = 0.6

# The rate that counts as speed 1: one core of an EPYC 7742 (Zen 2 at 3.4 GHz), which feeds the
# eight GPUs of a DGX A100. What other servers of its years reach lies within a tenth of it.
REFERENCE_RATE = 1.09 * 3.4e9

_MARKS = re.compile(r"\((?:r|tm)\)")
_COUNT = re.compile(r"^(?:cpu\s+)?\d+\s*x\s+(?=\D)")  # "2x Xeon E5-2630 v3"
_GENERATION = re.compile(r"^\d+(?:st|nd|rd|th) gen\s+")
_CLOCK = re.compile(r"(?:cpu\s*)?@\s*[\d.]+\s*ghz")
# What says nothing where the name has a model number. Without one it may be all that is known:
# "Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC Processor".
_FILLERS = re.compile(
    r"\bwith radeon.*$|\bw/ radeon.*$|\b\d+-cores?\b|\b(?:cpu|processor)\b(?!\s*\()"
)
_BRAND = re.compile(r"^(?:intel|amd|apple|aws|amazon|nvidia)(?=.)")


class HostCpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU, from its datasheet, as far as it decides how fast operators are issued.

    Args:
        id: Stable lower-case identifier: ``epyc-7742``.
        name: What people call it: ``EPYC 7742``.
        vendor: ``amd``, ``intel``, ``apple`` or ``arm``.
        core: Its microarchitecture: ``Zen 2``.
        num_cores: Physical cores of one socket.
        boost_hz: Highest clock of one core.
        instructions_per_clock: Of integer code, relative to Skylake.
        release_year: Year of release.
        aliases: Other names that systems give.
        is_virtual: Whether the name is a hypervisor's, behind which any clock may be.
        source: Where the figures of the CPU, then of its core, are from.
    """

    id: str
    name: str
    vendor: str
    core: str
    num_cores: int
    boost_hz: float
    instructions_per_clock: float
    release_year: int
    source: str
    aliases: tuple[str, ...] = ()
    is_virtual: bool = False

    @property
    def single_thread_speed(self) -> float:
        """Return how fast one core runs Python and the dispatcher; 1 is the reference host."""
        return self.boost_hz * self.instructions_per_clock / REFERENCE_RATE


class _CpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    name: str
    num_cores: int
    boost_hz: float
    release_year: int
    source: str = "recalled: the vendor's sheet"
    aliases: tuple[str, ...] = ()
    is_virtual: bool = False


class _CoreEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    name: str
    vendor: str
    instructions_per_clock: float
    source: str
    cpus: tuple[_CpuEntry, ...]


@functools.cache
def load_host_cpus() -> tuple[HostCpu, ...]:
    """Return every CPU of the table, by vendor, then year of release, then file order."""
    text = resources.files("breakeven.device").joinpath("hosts.toml").read_text("utf-8")
    cores = msgspec.convert(tomllib.loads(text)["core"], tuple[_CoreEntry, ...])
    cpus = [
        HostCpu(
            **msgspec.structs.asdict(
                msgspec.structs.replace(
                    cpu, source=f"{cpu.source}; instructions per clock: {core.source}"
                )
            ),
            vendor=core.vendor,
            core=core.name,
            instructions_per_clock=core.instructions_per_clock,
        )
        for core in cores
        for cpu in core.cpus
    ]
    return tuple(sorted(cpus, key=lambda cpu: (cpu.vendor, cpu.release_year)))


def find_host_cpu(name: str) -> HostCpu:
    """Return the CPU that ``name`` means.

    Case, spaces, marks, brands, core counts and base clocks do not matter: ``7763``,
    ``epyc-7763``, ``AMD EPYC 7763 64-Core Processor`` and
    ``Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz`` all work.

    Args:
        name: An id, name or alias of the table, loosely spelled.

    Raises:
        BreakevenError: No CPU, or more than one, has this name. The message lists the candidates
            or the nearest names; no other CPU's figures are ever returned.
    """
    by_key = _cpus_by_key()
    key = _cpu_key(name)
    found = by_key.get(key)
    if found is not None:
        return found
    # "7763" and "i7-7700" say all that matters, so a name with a number may begin in the middle.
    endings = {cpu.id: cpu for own, cpu in by_key.items() if key and own.endswith(key)}
    if len(endings) == 1 and re.search(r"\d", key):
        return next(iter(endings.values()))
    candidates = {cpu.id: cpu for own, cpu in by_key.items() if key and key in own}
    if len(candidates) > 1:
        raise BreakevenError(
            f"there are {len(candidates)} hosts like {name!r}: "
            f"{_listed(tuple(candidates.values()))}",
            hint=f"Give the full name. {_HINT}",
        )
    near = tuple(candidates.values()) or _near_matches(key)
    suggestion = f"; nearest: {_listed(near)}" if near else ""
    raise BreakevenError(f"there is no host {name!r}{suggestion}", hint=_HINT)


def _cpu_key(name: str) -> str:
    """Return the spelling-independent form: ``AMD EPYC 7502 32-Core Processor`` → ``epyc7502``."""
    text = _COUNT.sub("", _GENERATION.sub("", _MARKS.sub("", name.casefold().strip())))
    short = _FILLERS.sub("", _CLOCK.sub("", text))
    if re.search(r"\d", short):
        text = short
    squeezed = re.sub(r"[^a-z0-9]", "", text.replace("+", "plus"))
    return _BRAND.sub("", squeezed)


@functools.cache
def _cpus_by_key() -> Mapping[str, HostCpu]:
    by_key: dict[str, HostCpu] = {}
    for cpu in load_host_cpus():
        for name in (cpu.id, cpu.name, *cpu.aliases):
            other = by_key.setdefault(_cpu_key(name), cpu)
            assert other is cpu, f"{name!r} names both {other.id} and {cpu.id}"
    return by_key


def _near_matches(key: str) -> tuple[HostCpu, ...]:
    by_key = _cpus_by_key()
    keys = difflib.get_close_matches(key, by_key, n=2 * _MAX_NEAR, cutoff=_NEAR_CUTOFF)
    return tuple({by_key[near].id: by_key[near] for near in keys}.values())[:_MAX_NEAR]


def _listed(cpus: tuple[HostCpu, ...]) -> str:
    text = ", ".join(cpu.name for cpu in cpus[:_MAX_LISTED])
    rest = len(cpus) - _MAX_LISTED
    return f"{text} and {rest} more" if rest > 0 else text
