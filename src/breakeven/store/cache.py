"""What was measured or traced, remembered in the user's cache folder so that it is done once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
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
    """Everything that a measured run depends on, but for the user's files.

    Args:
        machine: The machine and its software.
        request: How the script was run, with every argument.
        folder: In which folder.
        environment: Digest of the variables that change how fast it runs.
        measuring: Version of the code that measures; the digest of its files, for instance.
    """

    machine: MachineKey
    request: str
    folder: str
    environment: str
    measuring: str


_Key = Mapping[str, str] | RunKey


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A file: valid only for the very key and the user's very files that it was written for."""

    version: int
    key: dict[str, Any]
    sources: dict[str, str]
    value: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Cache:
    """Files of one kind, named by the digests of their keys.

    What is damaged, or of another version, key or file of the user, counts as absent and is
    replaced. Where the folder cannot be written, nothing is kept.
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
        """Return the value of this type that was written for a key; None if there is none."""
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
        except (OSError, ValueError):  # of which msgspec's errors are a kind
            return None

    def write(self, key: _Key, value: object, sources: Mapping[str, str] | None = None) -> None:
        """Keep a value for a key, and for files of the user with these SHA-256 by path."""
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
# Of a `StepCase`: its step at two batch sizes.
TRACES = Cache(1, "traces/{}.msgpack", format=msgspec.msgpack)
# What a calibration of a GPU has measured so far.
CALIBRATIONS = Cache(1, "calibrating-{}.json", num_digits=16)


def read_host(key: Mapping[str, str]) -> HostCalibration | None:
    """Return the host as measured under ``key``, or None where it must be measured."""
    found = _HOSTS.read(key, HostCalibration)
    if found is None:
        return None
    times_ns = [figure.median_ns for figure in found.figures]
    for name, value in msgspec.structs.asdict(found.host).items():
        if name.endswith("_ns"):
            times_ns.append(value)
    # Only times that a computer may take.
    return found if all(0 <= time_ns < _LONGEST_NS for time_ns in times_ns) else None


def write_host(key: Mapping[str, str], calibration: HostCalibration) -> None:
    """Remember a host; where the cache folder cannot be written, it is measured each time."""
    _HOSTS.write(key, calibration)


def read_run(key: RunKey, kind: type[_Value]) -> _Value | None:
    """Return the run measured under ``key``, or None where it must be measured.

    It must be also where files of the user have changed that it was measured with.

    Args:
        key: Everything that the run depends on.
        kind: Type of the run.
    """
    return _RUNS.read(key, kind)


def write_run(key: RunKey, run: msgspec.Struct, sources: Mapping[str, str]) -> None:
    """Remember ``run``; where the cache folder cannot be written, it is measured each time.

    Args:
        key: Everything that the run depends on.
        run: What was measured.
        sources: SHA-256 in hexadecimal of each of the user's files that ran, by path.
    """
    _RUNS.write(key, run, sources)


def forget_runs(keys: Iterable[RunKey]) -> None:
    """Remove what was measured under ``keys``, where there is any."""
    for key in keys:
        try:
            _RUNS.path(key).unlink(missing_ok=True)
        except OSError:
            return  # what cannot be removed is of a folder that cannot be written either
