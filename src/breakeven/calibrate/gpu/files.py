"""The file of a calibrated GPU: written for this user, and shared with others."""

from __future__ import annotations

from pathlib import Path

import msgspec

from breakeven.cost import GpuCalibration, read_calibrations_again
from breakeven.device import user_calibrations
from breakeven.errors import BreakevenError
from breakeven.store import write_document

_LISTS = ("families", "effects", "copies", "samples", "steps", "left_out")


def calibration_bytes(calibration: GpuCalibration) -> bytes:
    """Return a calibration as it is kept: JSON, with a line for each measurement."""
    fields: list[str] = []
    for name in calibration.__struct_fields__:
        value = getattr(calibration, name)
        text = _lines(value) if name in _LISTS else _json(value)
        fields.append(f' "{name}": {text}')
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _lines(entries: tuple[object, ...]) -> str:
    if not entries:
        return "[]"
    return "[\n" + ",\n".join(f"  {_json(entry)}" for entry in entries) + "\n ]"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def save_calibration(calibration: GpuCalibration) -> Path:
    """Write a calibration to this user's folder, and return its file; predictions use it from now.

    Raises:
        BreakevenError: No folder is wanted, or it cannot be written.
    """
    folder = user_calibrations()
    if folder is None:
        raise BreakevenError(
            "BREAKEVEN_CALIBRATIONS is empty: calibrations are neither kept nor used",
            hint="name a folder, or unset it",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BreakevenError(
            f"cannot make the folder {folder}: {error.strerror}",
            hint="name another one: BREAKEVEN_CALIBRATIONS=FOLDER",
        ) from None
    path = folder / f"{calibration.device}.json"
    write_document(path, calibration_bytes(calibration), force=True)
    read_calibrations_again()
    return path


def sharing_text(path: Path, calibration: GpuCalibration) -> str:
    """Return how to contribute a calibration, and what is in it."""
    return f"""\
{path} holds what was measured of this {calibration.machine.gpu}, its names and
versions (GPU, processor, system, driver, torch, Python), and the date; nothing of your files, your
name or your network. To let everyone's predictions use it:

1. copy it to src/breakeven/device/calibrations/{calibration.device}.json in a clone of breakeven;
2. run: python -m pytest tests/unit/cost/test_gpu_calibration.py
3. open a pull request with that file alone; say whether other programs used the GPU meanwhile, and
   whether its power or clocks were limited.
"""
