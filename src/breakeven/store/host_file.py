"""Remember what this host spends per operator, so that it is measured once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import platformdirs

from breakeven.device import HostCalibration
from breakeven.errors import BreakevenError
from breakeven.store.report_file import write_document

_VERSION = 5
# Ten milliseconds: no host takes so long for one call.
_LONGEST_NS = 10_000_000.0


class _HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: valid only for the very key that it was written for."""

    version: int
    key: dict[str, str]
    calibration: HostCalibration


def read_host(key: dict[str, str]) -> HostCalibration | None:
    """Return the host as measured under ``key``, or None when there is none that can be read.

    A file that is damaged or of another version counts as none: it is a cache, and measuring
    again takes less than a second.
    """
    try:
        stored = msgspec.json.decode(_path(key).read_bytes(), type=_HostFile)
    except (OSError, msgspec.DecodeError):
        return None
    is_usable = stored.version == _VERSION and stored.key == key and _is_sound(stored.calibration)
    return stored.calibration if is_usable else None


def _is_sound(calibration: HostCalibration) -> bool:
    """Return whether all times are ones that a computer may take."""
    of_host = msgspec.structs.asdict(calibration.host)
    times_ns = [value for name, value in of_host.items() if name.endswith("_ns")]
    times_ns += [figure.median_ns for figure in calibration.figures]
    return all(0 <= time_ns < _LONGEST_NS for time_ns in times_ns)


def write_host(key: dict[str, str], calibration: HostCalibration) -> None:
    """Remember a host; where the cache folder cannot be written, it is measured each time."""
    path = _path(key)
    stored = _HostFile(version=_VERSION, key=key, calibration=calibration)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, msgspec.json.encode(stored), force=True)
    except (OSError, BreakevenError):
        return


def _path(key: dict[str, str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("breakeven")) / f"host-{digest}.json"
