"""The cache of measurements and traces in the user's cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from breakeven.device import HostCalibration
from breakeven.errors import BreakevenError
from breakeven.store.machine import MachineKey
from breakeven.store.report_file import write_document

# Ten milliseconds: no host takes so long for one call.
_LONGEST_NS = 10_000_000.0

_Value = TypeVar("_Value")


class RunKey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a measured run depends on, except the user's files.

    Args:
        machine: The machine and its software.
        request: The command that ran the script, with every argument.
        folder: Folder in which it was run.
        environment: Digest of the variables that change its speed.
        measuring: Version of the measuring code, such as the digest of its files.
    """

    machine: MachineKey
    request: str
    folder: str
    environment: str
    measuring: str


_Key = Mapping[str, str] | RunKey


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A cache file: valid only for its exact key and the exact content of its source files."""

    version: int
    key: dict[str, Any]
    sources: dict[str, str]
    value: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Cache:
    """Files of one kind, named by the digests of their keys.

    An entry counts as absent if it is damaged, or of another version, key or source file; the
    next write replaces it. If the folder cannot be written, nothing is cached.
    """

    version: int
    name: str
    num_digits: int = 32
    format: Any = msgspec.json

    def path(self, key: _Key) -> Path:
        """Return the file of a key."""
        digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()
        name = self.name.format(digest[: self.num_digits])
        return Path(platformdirs.user_cache_dir("breakeven")) / name

    def read(self, key: _Key, kind: type[_Value]) -> _Value | None:
        """Return the cached value of this type for a key, or None."""
        try:
            kept = self.format.decode(self.path(key).read_bytes(), type=_Kept)
            is_valid = (
                kept.version == self.version
                and kept.key == msgspec.to_builtins(key)
                and all(
                    hashlib.sha256(Path(path).read_bytes()).hexdigest() == sha256
                    for path, sha256 in kept.sources.items()
                )
            )
            return self.format.decode(kept.value, type=kind) if is_valid else None
        except (OSError, ValueError):  # msgspec's errors are ValueErrors
            return None

    def write(self, key: _Key, value: object, sources: Mapping[str, str] | None = None) -> None:
        """Cache a value for a key and for source files with these SHA-256 by path."""
        path = self.path(key)
        kept = _Kept(
            version=self.version,
            key=msgspec.to_builtins(key),
            sources=dict(sources or {}),
            value=msgspec.Raw(self.format.encode(value)),
        )
        with suppress(OSError, BreakevenError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_document(path, self.format.encode(kept), force=True)


_HOSTS = Cache(5, "host-{}.json", num_digits=16)
_RUNS = Cache(1, "runs/{}.json")
# A `StepCase`: its step at two batch sizes.
TRACES = Cache(1, "traces/{}.msgpack", format=msgspec.msgpack)
# Partial results of a GPU calibration.
CALIBRATIONS = Cache(1, "calibrating-{}.json", num_digits=16)


def read_host(key: Mapping[str, str]) -> HostCalibration | None:
    """Return the host measured under ``key``; None if it must be measured."""
    found = _HOSTS.read(key, HostCalibration)
    if found is None:
        return None
    times_ns = [figure.median_ns for figure in found.figures]
    for name, value in msgspec.structs.asdict(found.host).items():
        if name.endswith("_ns"):
            times_ns.append(value)
    # Reject times that no computer takes.
    return found if all(0 <= time_ns < _LONGEST_NS for time_ns in times_ns) else None


def write_host(key: Mapping[str, str], calibration: HostCalibration) -> None:
    """Cache a host; if the cache folder cannot be written, every run measures it again."""
    _HOSTS.write(key, calibration)


def read_run(key: RunKey, kind: type[_Value]) -> _Value | None:
    """Return the run measured under ``key``; None if it must be measured.

    It must be measured again if a source file of the user has changed.

    Args:
        key: Everything that the run depends on.
        kind: Type of the run.
    """
    return _RUNS.read(key, kind)


def write_run(key: RunKey, run: msgspec.Struct, sources: Mapping[str, str]) -> None:
    """Cache ``run``; if the cache folder cannot be written, it is measured each time.

    Args:
        key: Everything that the run depends on.
        run: The measured run.
        sources: SHA-256 in hexadecimal of each source file of the user that ran, by path.
    """
    _RUNS.write(key, run, sources)
