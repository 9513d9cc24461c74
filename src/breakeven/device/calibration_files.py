"""Files of calibrated GPUs: the shipped ones and the user's own."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import platformdirs

from breakeven.device.spec import DeviceSpec

# Replaces the user's folder. Empty means no folder: predictions then do not depend on
# measurements of this machine.
FOLDER_VARIABLE = "BREAKEVEN_CALIBRATIONS"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    spec: DeviceSpec | None = None


_SHIPPED = resources.files("breakeven.device") / "calibrations"


def user_calibrations() -> Path | None:
    """Return the folder of this user's calibrations; None if the variable is empty."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return platformdirs.user_config_path("breakeven") / "calibrations"
    return Path(folder) if folder else None


@cache
def own_calibration_files() -> tuple[tuple[str, bytes], ...]:
    """Return the name and content of each calibration file of this user."""
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
    """Return the name and content of each file: shipped ones first, then the user's."""
    return (*_shipped_files(), *own_calibration_files())


def calibrated_specs() -> tuple[DeviceSpec, ...]:
    """Return the GPUs known only by calibration; damaged files are skipped and reported later."""
    found: dict[str, DeviceSpec] = {}
    for _, document in calibration_files():
        with suppress(msgspec.MsgspecError):
            spec = msgspec.json.decode(document, type=_File).spec
            if spec is not None:
                found[spec.id] = spec
    return tuple(found.values())
