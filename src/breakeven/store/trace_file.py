"""Remember the traces of workloads, so that each is made once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import platformdirs

from breakeven.errors import BreakevenError
from breakeven.store.report_file import write_document
from breakeven.trace import StepTrace

_VERSION = 1


class _TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: valid only for the very key that it was written for."""

    version: int
    key: dict[str, str]
    first: StepTrace
    second: StepTrace


def read_traces(key: dict[str, str]) -> tuple[StepTrace, StepTrace] | None:
    """Return the step at two batch sizes traced under ``key``, or None when it must be traced.

    A file that is damaged or of another version counts as none: it is a cache, and is replaced.

    Args:
        key: Everything that the traces depend on.
    """
    try:
        stored = msgspec.msgpack.decode(_path(key).read_bytes(), type=_TraceFile)
    except (OSError, msgspec.DecodeError):
        return None
    is_valid = stored.version == _VERSION and stored.key == key
    return (stored.first, stored.second) if is_valid else None


def write_traces(key: dict[str, str], traces: tuple[StepTrace, StepTrace]) -> None:
    """Remember ``traces``; where the cache folder cannot be written, they are made each time."""
    path = _path(key)
    stored = _TraceFile(version=_VERSION, key=key, first=traces[0], second=traces[1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, msgspec.msgpack.encode(stored), force=True)
    except (OSError, BreakevenError):
        return


def _path(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("breakeven")) / "traces" / f"{digest}.msgpack"
