"""Predict anew, on any machine, what `run.py` measured on a GPU: when the model has changed.

    python benchmarks/gpu/again.py HOST.json CALIBRATION.json STEPS.csv [--write]

The calibration is fitted again to its own measurements, and each step predicted without it and
with it, on the host as it was measured there. ``--write`` puts both into their files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from summary import step_lines
from whole_steps import Place, digest, read_rows, set_predicted, write_rows

from breakeven.calibrate.gpu import GpuRequest, calibration_bytes
from breakeven.calibrate.gpu.calibrating import Measured, fit_calibration
from breakeven.calibrate.gpu.machine import COPY
from breakeven.cost import GpuCalibration, host_with_steps, read_calibration
from breakeven.device import HostSpec, find_device


def measured_of(calibration: GpuCalibration) -> Measured:
    """Return the measurements that a calibration was fitted to."""
    samples = [one for one in calibration.samples if not one.name.startswith(COPY)]
    return Measured(
        launch=calibration.launch,
        samples={f"{one.name} {one.precision}": one for one in samples},
        copies={one.name: one for one in calibration.samples if one.name.startswith(COPY)},
        steps={str(number): one for number, one in enumerate(calibration.steps)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Predict; print how far off that is, and keep it where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("host", type=Path, help="the host as it was measured")
    parser.add_argument("calibration", type=Path, help="of the GPU")
    parser.add_argument("steps", type=Path, help="table of measured steps")
    parser.add_argument("--write", action="store_true", help="write calibration and table")
    args = parser.parse_args(argv)
    host = msgspec.json.decode(args.host.read_bytes(), type=HostSpec)
    known = read_calibration(args.calibration.read_bytes(), str(args.calibration))
    # The number of a GPU matters to what measures it alone.
    request = GpuRequest(device=torch.device("cuda", 0), is_quick=known.is_quick)
    fitted = fit_calibration(request, known.machine, measured_of(known), 0, host)
    left_out = dict.fromkeys((*known.left_out, *fitted.left_out))
    fitted = msgspec.structs.replace(fitted, left_out=tuple(left_out))
    device = fitted.spec or find_device(fitted.device)
    rows: list[dict[str, Any]] = [dict(row) for row in read_rows(args.steps)]
    document = calibration_bytes(fitted)
    told_by = digest(document)
    for row in rows:
        row["calibration"] = told_by
    set_predicted(rows, "before", Place(device=device, calibration=None, host=host))
    calibrated = host_with_steps(host, fitted)
    set_predicted(rows, "after", Place(device=device, calibration=fitted, host=calibrated))
    if args.write:
        args.calibration.write_bytes(document)
        write_rows(args.steps, rows)
    told = [{name: str(value) for name, value in row.items()} for row in rows]
    print("\n".join(step_lines(told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
