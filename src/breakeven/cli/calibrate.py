"""``breakeven calibrate``: measures the cost of an operator on this host, and its GPU."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import add_quiet
from breakeven.cli.output import print_sheets, write_stdout
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    import torch

    from breakeven.device import HostSpec
    from breakeven.progress import Progress
    from breakeven.report.document import Document

_SEE_WHICH_TORCH = "see whether torch was built for it: python -m torch.utils.collect_env"

_REMEMBERED = "Remembered; measure again with --force."

SUMMARY = "measure this host and its GPU"
DESCRIPTION = """\
Measure this host's time per operator (some 5 s), and store it for this machine,
Python and torch. Predictions for GPUs use these figures.

If torch sees a GPU (CUDA, ROCm, MPS, XPU), measure it too, in up to 6 minutes:
launches, copies, kernels by family and precision, and whole steps. Predictions for
it then use its own file, in the user's configuration folder. After Ctrl-C, the same
command continues."""
USAGE = "calibrate [--device NAME] [--quick] [--share] [options]"
EXAMPLES = """\
examples:
  breakeven calibrate
  breakeven calibrate --force --json
  breakeven calibrate --device cuda:0 --quick
  breakeven calibrate --share"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``calibrate``."""
    parser.add_argument(
        "--json", action="store_true", help="print JSON, times in nanoseconds per call"
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="auto",
        help="GPU to measure, as torch calls it: cuda:0, mps, xpu; none for the host alone "
        "(default: the first that torch sees)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure only the main kernels and steps, within 60 s"
    )
    parser.add_argument(
        "--share", action="store_true", help="print an issue link to contribute this GPU's file"
    )
    parser.add_argument(
        "--force", action="store_true", help="measure although figures are remembered"
    )
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Measure this host and its GPU, and show the results."""
    for option in ("quick", "share"):
        if args.device == "none" and getattr(args, option):
            raise UsageError(f"--{option} is about a GPU, and --device none measures none")

    # Imported here, since --help must not wait for rich.
    from breakeven.calibrate import calibrate_here
    from breakeven.capture import Launcher
    from breakeven.cli.progress import show_progress
    from breakeven.cost import measured_speed
    from breakeven.report import busy_note, calibration_document, stored_calibration

    begun_s = time.monotonic()
    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        with Launcher() as launcher:
            progress.begin("starting torch")
            has_gpu = bool(launcher.ready().gpu)
            device = None
            if args.device not in ("none", "auto") or (args.device == "auto" and has_gpu):
                from breakeven.calibrate.gpu import find_gpu

                device = find_gpu(args.device)
            if args.share and device is None:
                raise BreakevenError(
                    "there is no GPU here to share a calibration of", hint=_SEE_WHICH_TORCH
                )
            progress.begin("measuring what an operator costs this host")
            here = calibrate_here(launcher, is_forced=args.force)
            progress.end()
        gpu = None
        if device is not None:
            gpu = _measure_gpu(args, device, progress, here.calibration.host, begun_s)
    speed = measured_speed(here.calibration)
    stored = stored_calibration(
        here.calibration,
        single_thread_speed=speed,
        is_remembered=here.is_remembered,
        other_load_fraction=here.other_load_fraction,
        gpu_calibration="" if gpu is None else str(gpu[0]),
    )
    notes: list[str] = []
    if here.is_remembered:
        notes.append(_REMEMBERED)
    if here.is_busy:
        notes.append(busy_note(here.other_load_fraction))
    if gpu is None and args.device == "auto":
        notes.append(f"torch sees no GPU here. If there is one, {_SEE_WHICH_TORCH}.")
    shown = [calibration_document(here.calibration, single_thread_speed=speed, notes=notes)]
    print_sheets(stored, *shown, *([] if gpu is None else [gpu[1]]), is_json=args.json)
    if gpu is not None and args.share and not args.json:
        write_stdout(f"\n{gpu[2]}".encode())
    return 0


def _measure_gpu(
    args: argparse.Namespace,
    device: torch.device,
    progress: Progress,
    host: HostSpec,
    begun_s: float,
) -> tuple[Path, Document, str]:
    """Measure the GPU, or complete an earlier measurement.

    Returns:
        The file, its document, and instructions to share the file.
    """
    from breakeven.calibrate.gpu import (
        GpuRequest,
        calibrate_gpu,
        save_calibration,
        sharing_text,
    )
    from breakeven.report import gpu_calibration_document

    request = GpuRequest(device=device, is_quick=args.quick, is_forced=args.force)
    try:
        result = calibrate_gpu(request, progress, host=host, begun_s=begun_s)
    except KeyboardInterrupt:
        sys.stderr.write("measurements are kept: the same command continues\n")
        raise
    path = save_calibration(result.calibration)
    notes = [f"Predictions for this GPU use {path}"]
    if not result.num_new:
        notes.append(_REMEMBERED)
    if result.num_left:
        notes.append(f"No time for {result.num_left} measurements: the same command continues.")
    document = gpu_calibration_document(result.calibration, notes=notes)
    return path, document, sharing_text(path, result.calibration)
