"""The shipped tables of GPUs and CPUs, and the lookup of an entry by name.

A name may come from a person, a driver or an operating system.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

import msgspec

from breakeven.device.calibration_files import calibrated_specs
from breakeven.device.spec import DeviceSpec, Generation
from breakeven.errors import BreakevenError, UnknownDeviceError
from breakeven.units import BYTES_PER_GIB

CATALOGUE = resources.files("breakeven.device") / "catalogue.toml"

_DEFAULT_IDS = ("rtx-3060", "t4", "l4", "rtx-4090", "a100-sxm4-80gb", "h100-sxm5-80gb")

_CATALOGUE_HINT = "Run `breakeven devices` for all names."
_HOSTS_HINT = "Run `breakeven devices --hosts` for all names."
# Longer lists of candidates are not read. CPU names are longer, so fewer of them are listed.
_MOST_LISTED, _MOST_NEAR = 12, 5
_MOST_HOSTS_LISTED, _MOST_HOSTS_NEAR = 8, 4
_NEAR_CUTOFF = 0.6

# Words for the maker or the product line, which do not identify a device. One exception: "RTX 6000"
# may be the Quadro of 2018 or the Ada card of 2022, so "Quadro" stays part of that name.
_BRAND = re.compile(
    r"^(?:nvidia|amd|apple|intel|geforce|quadro(?!rtx\d)|tesla|instinct|radeon|arc)+"
)
# RTX, GTX and RX carry no information before a number ("RTX 3060", "RTX A6000"); before a word they
# are part of the name ("GTX TITAN X" is another card than "TITAN X (Pascal)").
_SERIES = re.compile(r"^(?:rtx|gtx|rx)(?=a?\d)")
# "A100 40GB SXM" is the "A100 SXM 40GB".
_CAPACITY_WITHIN = re.compile(r"\b(\d+)[ -]?gi?b\b[ -]+(\S.*)$", re.IGNORECASE)
_FILLERS = (
    (re.compile(r"\((?:r|tm)\)"), ""),
    (re.compile(r"[^a-z0-9]"), ""),
    (re.compile(r"withmaxqdesign"), "maxq"),
    (re.compile(r"adageneration$"), "ada"),
    (re.compile(r"laptopgpu$"), "laptop"),
    (re.compile(r"graphics$"), ""),
    # "80GB" and "80" are the same memory; a lone "G" is not cut, or the A10G would be an A10.
    (re.compile(r"(?<=\d)gi?b$"), ""),
)


class _DeviceEntry(DeviceSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generation: tuple[Generation, ...]
    device: tuple[_DeviceEntry, ...]


@functools.cache
def read_catalogue() -> _Catalogue:
    """Return the whole catalogue file, validated."""
    return msgspec.convert(tomllib.loads(CATALOGUE.read_text("utf-8")), _Catalogue)


@functools.cache
def load_catalogue() -> tuple[DeviceSpec, ...]:
    """Return every device of the catalogue, by vendor, then year of release, then file order.

    It includes GPUs known only by calibration. Such a GPU is left out if the catalogue now has its
    datasheet, or if another one has its name.
    """
    known = dict(_by_key(_datasheets(), _device_key))
    measured: list[DeviceSpec] = []
    for spec in calibrated_specs():
        keys = {_device_key(name) for name in _written_names(spec)}
        if known.keys().isdisjoint(keys):
            measured.append(spec)
            known |= dict.fromkeys(keys, spec)
    return _in_order((*_datasheets(), *measured))


@functools.cache
def _datasheets() -> tuple[DeviceSpec, ...]:
    # Convert to the base class: reports and stored runs may come from versions with more fields.
    return tuple(DeviceSpec(**msgspec.structs.asdict(entry)) for entry in read_catalogue().device)


@functools.cache
def load_generations() -> Mapping[str, Generation]:
    """Return the generations by id, those of one vendor in order of descent."""
    return {generation.id: generation for generation in read_catalogue().generation}


def generation_of(device: DeviceSpec) -> Generation:
    """Return the generation of a device.

    Raises:
        ValueError: The catalogue lacks its generation.
    """
    generations = load_generations()
    if device.launch_generation not in generations:
        raise ValueError(
            f"{device.id}: the catalogue has no generation {device.launch_generation!r}; "
            f"known: {', '.join(generations)}"
        )
    return generations[device.launch_generation]


def generations_between(one: str, other: str) -> int | None:
    """Return the steps of descent between two generations; None for different vendors."""
    generations = load_generations()
    line = [each.id for each in generations.values() if each.vendor == generations[one].vendor]
    return abs(line.index(one) - line.index(other)) if other in line else None


def find_device(name: str) -> DeviceSpec:
    """Return the device called ``name``.

    Case, spaces, hyphens and brand words do not matter; nor does the capacity, if the name is
    unique without it. ``3060``, ``rtx3060``, ``A100-80GB`` and the strings of
    ``torch.cuda.get_device_name`` all work. A family name means the variant that lists it among
    its aliases.

    Args:
        name: An id, name or alias of the catalogue, loosely spelled.

    Raises:
        UnknownDeviceError: No device, or more than one, has this name. The message lists the
            candidates or the nearest names; no other device's figures are ever returned.
    """
    for spelling in (name, _CAPACITY_WITHIN.sub(r"\2 \1GB", name)):
        found = devices_by_key().get(_device_key(spelling))
        if found is not None:
            return found
    candidates = _partial_matches(name)
    if len(candidates) > 1:
        raise UnknownDeviceError(
            f"“{name}” could be any of {len(candidates)} devices: "
            f"{_listed(candidates, _MOST_LISTED)}.",
            hint=f"Give the full name. {_CATALOGUE_HINT}",
        )
    near = candidates or _nearest(_device_key(name), devices_by_key(), _MOST_NEAR)
    suggestion = f" Nearest: {_listed(near, _MOST_LISTED)}." if near else ""
    raise UnknownDeviceError(
        f"No device called “{name}” is in the catalogue.{suggestion}", hint=_CATALOGUE_HINT
    )


def known_device(name: str) -> DeviceSpec | None:
    """Return the device called ``name``; None if there is none or several."""
    try:
        return find_device(name)
    except UnknownDeviceError:
        return None


def default_devices() -> tuple[DeviceSpec, ...]:
    """Return the devices of a report if the user names none, smallest first."""
    return tuple(find_device(device_id) for device_id in _DEFAULT_IDS)


def _device_key(name: str) -> str:
    """Return the spelling-independent form of a name: ``NVIDIA GeForce RTX 3090`` → ``3090``."""
    key = name.casefold()
    for pattern, replacement in _FILLERS:
        key = pattern.sub(replacement, key)
    return _SERIES.sub("", _BRAND.sub("", key))


@functools.cache
def devices_by_key() -> Mapping[str, DeviceSpec]:
    """Return the devices by the key of each of their names, with and without the capacity."""
    catalogue = load_catalogue()
    by_key = _by_key(catalogue, _device_key)
    # A capacity may be added to any name ("T4 16GB"), unless it then is another device's name:
    # "V100" is the 16 GB card, "V100 32GB" is not.
    for device in catalogue:
        capacity = round(device.memory_bytes / BYTES_PER_GIB)
        for name in _written_names(device):
            by_key.setdefault(_device_key(f"{name} {capacity}GB"), device)
    return by_key


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def _partial_matches(name: str) -> tuple[DeviceSpec, ...]:
    """Return the devices whose vendor or name contains ``name``."""
    whole = _squeezed(name)
    part = _BRAND.sub("", whole) or whole  # a brand alone still lists its devices
    if not part:
        return ()
    return tuple(
        device
        for device in load_catalogue()
        if any(part in _squeezed(f"{device.vendor} {text}") for text in _written_names(device))
    )


# The rate that counts as speed 1: one core of an EPYC 7742 (Zen 2 at 3.4 GHz), which feeds the
# eight GPUs of a DGX A100. Other servers of its years lie within 10 % of it.
REFERENCE_RATE = 1.09 * 3.4e9

_MARKS = re.compile(r"\((?:r|tm)\)")
_COUNT = re.compile(r"^(?:cpu\s+)?\d+\s*x\s+(?=\D)")  # "2x Xeon E5-2630 v3"
_GENERATION = re.compile(r"^\d+(?:st|nd|rd|th) gen\s+")
_CLOCK = re.compile(r"(?:cpu\s*)?@\s*[\d.]+\s*ghz")
# Words to drop if the name has a model number. Without one they may be the whole name:
# "Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC Processor".
_CPU_FILLERS = re.compile(
    r"\bwith radeon.*$|\bw/ radeon.*$|\b\d+-cores?\b|\b(?:cpu|processor)\b(?!\s*\()"
)
_CPU_BRAND = re.compile(r"^(?:intel|amd|apple|aws|amazon|nvidia)(?=.)")


class HostCpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One CPU from its datasheet: the figures that decide how fast it issues operators.

    Args:
        id: Stable lower-case identifier: ``epyc-7742``.
        name: Its usual name: ``EPYC 7742``.
        vendor: ``amd``, ``intel``, ``apple`` or ``arm``.
        core: Its microarchitecture: ``Zen 2``.
        num_cores: Physical cores of one socket.
        boost_hz: Highest clock of one core.
        instructions_per_clock: Rate of integer code, relative to Skylake.
        release_year: Year of release.
        aliases: Other names that systems report.
        is_virtual: Whether a hypervisor sets the name, so that the clock is unknown.
        vector_flop_per_clock: fp32 FLOP of one core and clock, a fused multiply-add being two;
            None if not looked up, as for the two below.
        sustained_hz: Base clock, which all cores sustain.
        memory_bytes_per_s: Bandwidth of all channels of one socket.
        source: Sources of the CPU's figures, then of its core's.
    """

    id: str
    name: str
    vendor: str
    core: str
    num_cores: int
    boost_hz: float
    instructions_per_clock: float
    release_year: int
    source: str = "recalled: the vendor's sheet"
    aliases: tuple[str, ...] = ()
    is_virtual: bool = False
    vector_flop_per_clock: float | None = None
    sustained_hz: float | None = None
    memory_bytes_per_s: float | None = None

    @property
    def single_thread_speed(self) -> float:
        """Return the speed of one core in Python and the dispatcher; 1 is the reference host."""
        return self.boost_hz * self.instructions_per_clock / REFERENCE_RATE


class _CoreEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A microarchitecture, and the CPUs that have it."""

    id: str
    name: str
    vendor: str
    instructions_per_clock: float
    source: str
    cpus: tuple[dict[str, Any], ...]

    def host_cpus(self) -> Iterator[HostCpu]:
        """Yield the CPUs with the figures of their core."""
        of_core = {"vendor": self.vendor, "core": self.name}
        of_core |= {"instructions_per_clock": self.instructions_per_clock}
        for entry in self.cpus:
            cpu = msgspec.convert(entry | of_core, HostCpu)
            source = f"{cpu.source}; instructions per clock: {self.source}"
            yield msgspec.structs.replace(cpu, source=source)


@functools.cache
def load_host_cpus() -> tuple[HostCpu, ...]:
    """Return every CPU of the table, by vendor, then year of release, then file order."""
    text = resources.files("breakeven.device").joinpath("hosts.toml").read_text("utf-8")
    cores = msgspec.convert(tomllib.loads(text)["core"], tuple[_CoreEntry, ...])
    return _in_order(cpu for core in cores for cpu in core.host_cpus())


def find_host_cpu(name: str) -> HostCpu:
    """Return the CPU called ``name``.

    Case, spaces, marks, brands, core counts and base clocks do not matter: ``7763``,
    ``epyc-7763``, ``AMD EPYC 7763 64-Core Processor`` and
    ``Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz`` all work.

    Args:
        name: An id, name or alias of the table, loosely spelled.

    Raises:
        BreakevenError: No CPU, or more than one, has this name. The message lists the candidates
            or the nearest names; no other CPU's figures are ever returned.
    """
    by_key, key = _cpus_by_key(), _cpu_key(name)
    found = by_key.get(key)
    if found is not None:
        return found
    # "7763" and "i7-7700" suffice, so a name with a number may match the end of a key.
    endings = {cpu.id: cpu for own, cpu in by_key.items() if key and own.endswith(key)}
    if len(endings) == 1 and re.search(r"\d", key):
        return next(iter(endings.values()))
    containing = {cpu.id: cpu for own, cpu in by_key.items() if key and key in own}
    candidates = tuple(containing.values())
    if len(candidates) > 1:
        raise BreakevenError(
            f"there are {len(candidates)} hosts like {name!r}: "
            f"{_listed(candidates, _MOST_HOSTS_LISTED)}",
            hint=f"Give the full name. {_HOSTS_HINT}",
        )
    near = candidates or _nearest(key, by_key, _MOST_HOSTS_NEAR)
    suggestion = f"; nearest: {_listed(near, _MOST_HOSTS_LISTED)}" if near else ""
    raise BreakevenError(f"there is no host {name!r}{suggestion}", hint=_HOSTS_HINT)


def _cpu_key(name: str) -> str:
    """Return the spelling-independent form: ``AMD EPYC 7502 32-Core Processor`` → ``epyc7502``."""
    text = _COUNT.sub("", _GENERATION.sub("", _MARKS.sub("", name.casefold().strip())))
    short = _CPU_FILLERS.sub("", _CLOCK.sub("", text))
    if re.search(r"\d", short):
        text = short
    squeezed = re.sub(r"[^a-z0-9]", "", text.replace("+", "plus"))
    return _CPU_BRAND.sub("", squeezed)


@functools.cache
def _cpus_by_key() -> Mapping[str, HostCpu]:
    return _by_key(load_host_cpus(), _cpu_key)


_Entry = TypeVar("_Entry", DeviceSpec, HostCpu)


def _in_order(entries: Iterable[_Entry]) -> tuple[_Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.vendor, entry.release_year)))


def _by_key(entries: Iterable[_Entry], key_of: Callable[[str], str]) -> dict[str, _Entry]:
    """Return the entries by the key of each name in the table."""
    by_key: dict[str, _Entry] = {}
    for entry in entries:
        for name in _written_names(entry):
            other = by_key.setdefault(key_of(name), entry)
            assert other is entry, f"{name!r} names both {other.id} and {entry.id}"
    return by_key


def _written_names(entry: DeviceSpec | HostCpu) -> tuple[str, ...]:
    return (entry.id, entry.name, *entry.aliases)


def _nearest(key: str, by_key: Mapping[str, _Entry], most: int) -> tuple[_Entry, ...]:
    keys = difflib.get_close_matches(key, by_key, n=2 * most, cutoff=_NEAR_CUTOFF)
    return tuple({by_key[near].id: by_key[near] for near in keys}.values())[:most]


def _listed(entries: Sequence[DeviceSpec | HostCpu], most: int) -> str:
    text = ", ".join(entry.name for entry in entries[:most])
    rest = len(entries) - most
    return f"{text} and {rest} more" if rest > 0 else text
