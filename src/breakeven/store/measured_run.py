"""Remember measured runs, each as soon as it is there, so that none is measured twice."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import platformdirs

from breakeven.errors import BreakevenError
from breakeven.processor import num_cores
from breakeven.store.machine import installed_version
from breakeven.store.report_file import write_document

_VERSION = 1

_Run = TypeVar("_Run")


class MachineKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a measurement depends on besides its configuration: the machine and its software.

    Args:
        hostname: Name of the machine.
        processor: Name of its CPU.
        num_processors: Logical processors that this process may use.
        python_version: Python that runs the script.
        torch_version: torch that runs it.
        breakeven_version: breakeven that measures it.
    """

    hostname: str
    processor: str
    num_processors: int
    python_version: str
    torch_version: str
    breakeven_version: str


def machine_key(*, processor: str, torch_version: str) -> MachineKey:
    """Return the key of this machine.

    Args:
        processor: Name of its CPU.
        torch_version: torch that runs scripts here.
    """
    return MachineKey(
        hostname=platform.node(),
        processor=processor,
        num_processors=num_cores(),
        python_version=platform.python_version(),
        torch_version=torch_version,
        breakeven_version=installed_version("breakeven"),
    )


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


class _RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: valid only for the very key and the very files that it was written for."""

    version: int
    key: RunKey
    sources: dict[str, str]
    run: msgspec.Raw


def read_run(key: RunKey, kind: type[_Run]) -> _Run | None:
    """Return the run measured under ``key``, or None where it must be measured.

    A file that is damaged, of another version or key, or measured with files of the user that
    have changed since then counts as none.

    Args:
        key: Everything that the run depends on.
        kind: Type of the run.
    """
    try:
        stored = msgspec.json.decode(_path(key).read_bytes(), type=_RunFile)
        if stored.version != _VERSION or stored.key != key or not _are_unchanged(stored.sources):
            return None
        return msgspec.json.decode(stored.run, type=kind)
    except (OSError, ValueError):  # of which msgspec's errors are a kind
        return None


def write_run(key: RunKey, run: msgspec.Struct, sources: Mapping[str, str]) -> None:
    """Remember ``run``; where the cache folder cannot be written, it is measured each time.

    Args:
        key: Everything that the run depends on.
        run: What was measured.
        sources: SHA-256 in hexadecimal of each of the user's files that ran, by path.
    """
    path = _path(key)
    stored = _RunFile(
        version=_VERSION,
        key=key,
        sources=dict(sources),
        run=msgspec.Raw(msgspec.json.encode(run)),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, msgspec.json.encode(stored), force=True)
    except (OSError, BreakevenError):
        return


def forget_runs(keys: Iterable[RunKey]) -> None:
    """Remove what was measured under ``keys``, where there is any."""
    for key in keys:
        try:
            _path(key).unlink(missing_ok=True)
        except OSError:
            return  # what cannot be removed is of a folder that cannot be written either


def _are_unchanged(sources: Mapping[str, str]) -> bool:
    return all(_digest(path) == sha256 for path, sha256 in sources.items())


def _digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _path(key: RunKey) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("breakeven")) / "runs" / f"{digest}.json"
