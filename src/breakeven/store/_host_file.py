"""Remember what this host spends per operator, so that it is measured once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import platformdirs

from breakeven.device import HostSpec
from breakeven.errors import BreakevenError
from breakeven.store._report_file import write_document

_VERSION = 1


class _HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: valid only for the very key that it was written for."""

    version: int
    key: dict[str, str]
    host: HostSpec


def read_host(key: dict[str, str]) -> HostSpec | None:
    """Return the host measured under ``key``, or None when there is none that can be read.

    A file that is damaged or of another version counts as none: it is a cache, and measuring
    again takes less than half a second.
    """
    try:
        stored = msgspec.json.decode(_path(key).read_bytes(), type=_HostFile)
    except (OSError, msgspec.DecodeError):
        return None
    return stored.host if stored.version == _VERSION and stored.key == key else None


def write_host(key: dict[str, str], host: HostSpec) -> None:
    """Remember ``host``; where the cache folder cannot be written, it is measured each time."""
    path = _path(key)
    stored = _HostFile(version=_VERSION, key=key, host=host)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, msgspec.json.encode(stored), force=True)
    except (OSError, BreakevenError):
        return


def _path(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("breakeven")) / f"host-{digest}.json"
