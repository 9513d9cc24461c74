"""``breakeven calibrate``: what an operator costs this host, and fits to tables of timings."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import add_quiet
from breakeven.cli.output import write_stdout
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    import torch

    from breakeven.device import HostSpec
    from breakeven.progress import Progress
    from breakeven.report.document import Document

_SEE_WHICH_TORCH = "see whether torch was built for it: python -m torch.utils.collect_env"

SUMMARY = "measure this host and its GPU, or fit predictions to tables"
DESCRIPTION = """\
Measure what this machine spends to issue an operator, in some 5 s with the start of
torch, and remember it for this machine, Python and torch: `breakeven check` predicts
GPUs with these figures.

Where torch sees a GPU (CUDA, ROCm, MPS, XPU), it is measured too, in up to 6 minutes:
launches, copies, kernels by family and precision, and whole steps. Predictions for it
then rest on its own file, in the user's configuration folder. What was measured is
kept when this is interrupted: the same command goes on.

The other forms write the files that predictions rest on, one after the other.
--from-tables fits how much of their datasheets GPUs reach to measurements of single
operators. --from-steps fits what differs within whole steps to those of a table in
the form of `breakeven validate`; rows of --own-steps teach what is peculiar to their
GPUs and machines alone. --from-shared-steps fits what steps on several GPUs
cost beyond those on one.

Exit codes: 0 done, 2 wrong command line, 3 could not be done."""
USAGE = (
    "calibrate [--device NAME] [--quick] [--fp64] [--share] [--json] [--force] |\n"
    "       --from-tables DIR -o FILE |\n"
    "       --from-steps TABLE.csv [--own-steps TABLE.csv] -o FILE |\n"
    "       --from-shared-steps TABLE.csv -o FILE | --errors"
)
EXAMPLES = """\
examples:
  breakeven calibrate
  breakeven calibrate --force --json
  breakeven calibrate --device cuda:0 --quick
  breakeven calibrate --share
  breakeven calibrate --from-tables tables/ -o efficiency.json
  breakeven calibrate --from-steps steps.csv -o step_effects.json
  breakeven calibrate --from-shared-steps steps.csv -o multi_gpu.json
  breakeven calibrate --errors"""


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
        "--quick", action="store_true", help="the most telling kernels and steps alone, within 60 s"
    )
    parser.add_argument("--fp64", action="store_true", help="products and convolutions in fp64 too")
    parser.add_argument(
        "--share", action="store_true", help="say how to contribute the file of this GPU"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="measure although figures are remembered; with -o, replace FILE",
    )
    parser.add_argument(
        "--from-tables",
        dest="tables",
        metavar="DIR",
        type=Path,
        help="fit the efficiencies of GPUs to the tables in DIR (takes minutes)",
    )
    parser.add_argument(
        "--from-steps",
        dest="steps",
        metavar="TABLE.csv",
        type=Path,
        nargs="+",
        help="fit the effects of whole steps to the rows of TABLE.csv (takes minutes)",
    )
    parser.add_argument(
        "--own-steps",
        metavar="TABLE.csv",
        type=Path,
        nargs="+",
        default=[],
        help="with --from-steps: rows that teach what is peculiar to their GPUs, and no more",
    )
    parser.add_argument(
        "--from-shared-steps",
        dest="shared_steps",
        metavar="TABLE.csv",
        type=Path,
        help="fit the costs of several GPUs to TABLE.csv (takes minutes)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write them as JSON to FILE"
    )
    parser.add_argument(
        "--errors",
        action="store_true",
        help="print the errors of the efficiencies that ship, and measure nothing",
    )
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Measure this host, or fit what predictions rest on, and describe it."""
    fits = [
        (option, fit)
        for option, source, fit in (
            ("--from-tables", args.tables, _fit),
            ("--from-steps", args.steps, _fit_steps),
            ("--from-shared-steps", args.shared_steps, _fit_shared_steps),
        )
        if source is not None
    ]
    if len(fits) > 1:
        raise UsageError(f"{fits[0][0]} and {fits[1][0]} write different files: give one")
    if fits and args.output is None:
        raise UsageError(f"{fits[0][0]} and -o go together")
    if args.own_steps and args.steps is None:
        raise UsageError("--own-steps goes with --from-steps")
    if args.output is not None and not fits:
        raise UsageError("-o goes with --from-tables, --from-steps or --from-shared-steps")
    gpu_options = (
        ("--device", args.device != "auto"),
        ("--quick", args.quick),
        ("--fp64", args.fp64),
        ("--share", args.share),
    )
    for option, is_given in gpu_options:
        if is_given and (fits or args.errors):
            raise UsageError(f"{option} is about the GPU of this machine: leave it out")
        if is_given and args.device == "none" and option != "--device":
            raise UsageError(f"{option} is about a GPU, and --device none measures none")
    if args.json and (args.errors or fits):
        raise UsageError("--json is about this host; what is fitted is a JSON file itself")
    if args.errors and fits:
        raise UsageError(f"{fits[0][0]} prints errors of its own: leave out --errors")
    if args.errors:
        return _show_errors()
    if fits:
        _, fit = fits[0]
        return fit(args)
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    # Imported here, since --help must not wait for rich.
    from breakeven.calibrate import calibrate_here
    from breakeven.capture import Launcher
    from breakeven.cli.output import give_sheets
    from breakeven.cli.progress import show_progress
    from breakeven.cost import measured_speed
    from breakeven.report import busy_note, calibration_document, stored_calibration

    begun_s = time.monotonic()
    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        with Launcher() as launcher:
            progress.begin("starting torch")
            device = _wanted_gpu(args.device, has_gpu=bool(launcher.ready().gpu))
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
        gpu_calibration="" if gpu is None else str(gpu.path),
    )
    notes: list[str] = []
    if here.is_remembered:
        notes.append("Remembered; measure again with --force.")
    if here.is_busy:
        notes.append(busy_note(here.other_load_fraction))
    if gpu is None and args.device == "auto":
        notes.append(f"torch sees no GPU here. Where there is one, {_SEE_WHICH_TORCH}.")
    shown = [calibration_document(here.calibration, single_thread_speed=speed, notes=notes)]
    if gpu is not None:
        shown.append(gpu.document)
    give_sheets(stored, *shown, is_json=args.json)
    if gpu is not None and args.share and not args.json:
        write_stdout(f"\n{gpu.sharing}".encode())
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuSheet:
    path: Path
    document: Document
    sharing: str


def _wanted_gpu(name: str, *, has_gpu: bool) -> torch.device | None:
    """Return the GPU to measure; None for the host alone.

    Raises:
        BreakevenError: There is no such GPU.
    """
    if name == "none" or (name == "auto" and not has_gpu):
        return None
    from breakeven.calibrate.gpu import find_gpu

    return find_gpu(name)


def _measure_gpu(
    args: argparse.Namespace,
    device: torch.device,
    progress: Progress,
    host: HostSpec,
    begun_s: float,
) -> _GpuSheet:
    """Measure the GPU, or what is left of it to measure, and write its file."""
    from breakeven.calibrate.gpu import (
        GpuRequest,
        calibrate_gpu,
        save_calibration,
        sharing_text,
    )
    from breakeven.report import gpu_calibration_document

    request = GpuRequest(
        device=device, is_quick=args.quick, has_fp64=args.fp64, is_forced=args.force
    )
    try:
        result = calibrate_gpu(request, progress, host=host, begun_s=begun_s)
    except KeyboardInterrupt:
        sys.stderr.write("what was measured is kept: the same command goes on\n")
        raise
    path = save_calibration(result.calibration)
    notes = [f"Predictions for this GPU use {path}"]
    if not result.num_new:
        notes.append("Remembered; measure again with --force.")
    if result.num_left:
        notes.append(f"No time for {result.num_left} measurements: the same command goes on.")
    return _GpuSheet(
        path=path,
        document=gpu_calibration_document(result.calibration, notes=notes),
        sharing=sharing_text(path, result.calibration),
    )


def _fit(args: argparse.Namespace) -> int:
    from breakeven.calibrate import describe_efficiencies, efficiencies_document, fit_efficiencies
    from breakeven.store import ensure_writable

    ensure_writable(args.output, force=args.force)
    table = fit_efficiencies(args.tables)
    return _write_fit(args, efficiencies_document(table), describe_efficiencies(table))


def _fit_steps(args: argparse.Namespace) -> int:
    from breakeven.calibrate import describe_step_effects, step_effects_document
    from breakeven.cli.progress import show_progress
    from breakeven.store import ensure_writable
    from breakeven.validate import calibrate_on_steps, read_table

    ensure_writable(args.output, force=args.force)
    rows = read_table(*args.steps)
    own_rows = read_table(*args.own_steps) if args.own_steps else ()
    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        effects = calibrate_on_steps(
            rows, own_rows, command="breakeven calibrate --from-steps", progress=progress
        )
    return _write_fit(args, step_effects_document(effects), describe_step_effects(effects))


def _fit_shared_steps(args: argparse.Namespace) -> int:
    from breakeven.calibrate import describe_multi_gpu, multi_gpu_document
    from breakeven.cli.progress import show_progress
    from breakeven.store import ensure_writable
    from breakeven.validate import calibrate_on_shared_steps, read_table

    ensure_writable(args.output, force=args.force)
    rows = read_table(args.shared_steps)
    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        table = calibrate_on_shared_steps(
            rows, command="breakeven calibrate --from-shared-steps", progress=progress
        )
    return _write_fit(args, multi_gpu_document(table), describe_multi_gpu(table))


def _write_fit(args: argparse.Namespace, document: bytes, description: str) -> int:
    """Write what was fitted to its file, and say on stdout what it is."""
    from breakeven.store import write_document

    write_document(args.output, document, force=args.force)
    write_stdout(description.encode())
    return 0


def _show_errors() -> int:
    from breakeven.calibrate import describe_efficiencies
    from breakeven.cost import load_efficiencies

    write_stdout(describe_efficiencies(load_efficiencies()).encode())
    return 0
