"""Files of calibrated GPUs: those that ship, and those in the user's folder."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import platformdirs

from breakeven.device.spec import DeviceSpec

# Names another folder in place of the user's; empty for none, as where predictions must not depend
# on what was measured here.
FOLDER_VARIABLE = "BREAKEVEN_CALIBRATIONS"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    spec: DeviceSpec | None = None


_SHIPPED = resources.files("breakeven.device") / "calibrations"


def user_calibrations() -> Path | None:
    """Return the folder in which this user's calibrations are kept; None where none is wanted."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return platformdirs.user_config_path("breakeven") / "calibrations"
    return Path(folder) if folder else None


@cache
def own_calibration_files() -> tuple[tuple[str, bytes], ...]:
    """Return name and content of each file of this user."""
    folder = user_calibrations()
    if folder is None or not folder.is_dir():
        return ()
    return tuple((str(path), path.read_bytes()) for path in sorted(folder.glob("*.json")))


@cache
def _shipped_files() -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (file.name, file.read_bytes())
        for file in sorted(_SHIPPED.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".json")
    )


def calibration_files() -> tuple[tuple[str, bytes], ...]:
    """Return name and content of each file, the user's after those that ship."""
    return (*_shipped_files(), *own_calibration_files())


def calibrated_specs() -> tuple[DeviceSpec, ...]:
    """Return the GPUs of which all that is known was measured; damaged files are told of later."""
    found: dict[str, DeviceSpec] = {}
    for _, document in calibration_files():
        with suppress(msgspec.MsgspecError):
            spec = msgspec.json.decode(document, type=_File).spec
            if spec is not None:
                found[spec.id] = spec
    return tuple(found.values())
