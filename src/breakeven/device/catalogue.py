"""The shipped datasheets, and how a name that a person or a driver gives finds its device."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec

from breakeven.device.spec import DeviceSpec, Generation
from breakeven.errors import UnknownDeviceError
from breakeven.units import BYTES_PER_GIB

CATALOGUE = resources.files("breakeven.device") / "catalogue.toml"

_DEFAULT_IDS = ("rtx-3060", "t4", "l4", "rtx-4090", "a100-sxm4-80gb", "h100-sxm5-80gb")

_CATALOGUE_HINT = "Run `breakeven devices` for all names."
_MAX_LISTED = 12  # longer lists of candidates are no longer read
_MAX_NEAR = 5
_NEAR_CUTOFF = 0.6

# Words that say who made or sells a device, never which device it is. One exception: "RTX 6000"
# may mean the Quadro of 2018 or the Ada card of 2022, so there "Quadro" is part of the name.
_BRAND = re.compile(
    r"^(?:nvidia|amd|apple|intel|geforce|quadro(?!rtx\d)|tesla|instinct|radeon|arc)+"
)
# RTX, GTX and RX say nothing before a number ("RTX 3060", "RTX A6000"); before a word they are
# part of the name ("GTX TITAN X" is another card than "TITAN X (Pascal)").
_SERIES = re.compile(r"^(?:rtx|gtx|rx)(?=a?\d)")
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
    """Return the whole file, checked."""
    return msgspec.convert(tomllib.loads(CATALOGUE.read_text("utf-8")), _Catalogue)


@functools.cache
def load_catalogue() -> tuple[DeviceSpec, ...]:
    """Return every device of the catalogue, by vendor, then year of release, then file order."""
    devices = (DeviceSpec(**msgspec.structs.asdict(entry)) for entry in read_catalogue().device)
    return tuple(sorted(devices, key=lambda device: (device.vendor, device.release_year)))


@functools.cache
def load_generations() -> Mapping[str, Generation]:
    """Return the generations by id, those of one vendor in order of descent."""
    return {generation.id: generation for generation in read_catalogue().generation}


def generation_of(device: DeviceSpec) -> Generation:
    """Return the generation of a device.

    Raises:
        ValueError: It is not in the catalogue.
    """
    generations = load_generations()
    if device.launch_generation not in generations:
        raise ValueError(
            f"{device.id}: the catalogue has no generation {device.launch_generation!r}; "
            f"known: {', '.join(generations)}"
        )
    return generations[device.launch_generation]


def generations_between(one: str, other: str) -> int | None:
    """Return how many steps of descent lie between two generations; None of other vendors'."""
    generations = load_generations()
    line = [each.id for each in generations.values() if each.vendor == generations[one].vendor]
    return abs(line.index(one) - line.index(other)) if other in line else None


def find_device(name: str) -> DeviceSpec:
    """Return the device that ``name`` means.

    Case, spaces, hyphens and brand words do not matter, nor does the capacity where the name
    decides without it: ``3060``, ``rtx3060``, ``A100-80GB`` and the strings of
    ``torch.cuda.get_device_name`` all work. A family name means the variant that lists it among
    its aliases.

    Args:
        name: An id, name or alias of the catalogue, loosely spelled.

    Raises:
        UnknownDeviceError: No device, or more than one, has this name. The message lists the
            candidates or the nearest names; no other device's figures are ever returned.
    """
    found = devices_by_key().get(_device_key(name))
    if found is not None:
        return found
    candidates = _partial_matches(name)
    if len(candidates) > 1:
        raise UnknownDeviceError(
            f"“{name}” could be any of {len(candidates)} devices: {_listed(candidates)}.",
            hint=f"Give the full name. {_CATALOGUE_HINT}",
        )
    near = candidates or _near_matches(name)
    suggestion = f" Nearest: {_listed(near)}." if near else ""
    raise UnknownDeviceError(
        f"No device called “{name}” is in the catalogue.{suggestion}", hint=_CATALOGUE_HINT
    )


def default_devices() -> tuple[DeviceSpec, ...]:
    """Return the devices that a report compares when the user names none, smallest first."""
    return tuple(find_device(device_id) for device_id in _DEFAULT_IDS)


def select_devices(names: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Return the devices of these names, each once; `default_devices` for no names.

    Raises:
        UnknownDeviceError: A name matches no device, or several.
    """
    if not names:
        return default_devices()
    return tuple({spec.id: spec for spec in map(find_device, names)}.values())


def _device_key(name: str) -> str:
    """Return the spelling-independent form of a name: ``NVIDIA GeForce RTX 3090`` → ``3090``."""
    key = name.casefold()
    for pattern, replacement in _FILLERS:
        key = pattern.sub(replacement, key)
    return _SERIES.sub("", _BRAND.sub("", key))


@functools.cache
def devices_by_key() -> Mapping[str, DeviceSpec]:
    """Return each key that a catalogued name gives, with and without its capacity."""
    catalogue = load_catalogue()
    by_key: dict[str, DeviceSpec] = {}
    for device in catalogue:
        for name in _written_names(device):
            other = by_key.setdefault(_device_key(name), device)
            assert other is device, f"{name!r} names both {other.id} and {device.id}"
    # A capacity may be added to any name ("T4 16GB"), unless it then is another device's name:
    # "V100" is the 16 GB card, "V100 32GB" is not.
    for device in catalogue:
        capacity = round(device.memory_bytes / BYTES_PER_GIB)
        for name in _written_names(device):
            by_key.setdefault(_device_key(f"{name} {capacity}GB"), device)
    return by_key


def _written_names(device: DeviceSpec) -> tuple[str, ...]:
    return (device.id, device.name, *device.aliases)


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def _partial_matches(name: str) -> tuple[DeviceSpec, ...]:
    """Return the devices of which ``name`` is a part of the vendor's or the device's name."""
    whole = _squeezed(name)
    part = _BRAND.sub("", whole) or whole  # a brand alone still lists its devices
    if not part:
        return ()
    return tuple(
        device
        for device in load_catalogue()
        if any(part in _squeezed(f"{device.vendor} {text}") for text in _written_names(device))
    )


def _near_matches(name: str) -> tuple[DeviceSpec, ...]:
    by_key = devices_by_key()
    keys = difflib.get_close_matches(
        _device_key(name), by_key, n=2 * _MAX_NEAR, cutoff=_NEAR_CUTOFF
    )
    by_id = {by_key[key].id: by_key[key] for key in keys}
    return tuple(by_id.values())[:_MAX_NEAR]


def _listed(devices: tuple[DeviceSpec, ...]) -> str:
    text = ", ".join(device.name for device in devices[:_MAX_LISTED])
    rest = len(devices) - _MAX_LISTED
    return f"{text} and {rest} more" if rest > 0 else text
