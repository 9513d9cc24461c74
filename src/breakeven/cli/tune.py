"""``breakeven tune``: the fastest configuration of a training step, found by measurement."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.cli.options import (
    add_force,
    add_json,
    add_module,
    add_run,
    add_target,
    duration_s,
    run_options,
    whole_number,
)
from breakeven.cli.output import print_report, say
from breakeven.errors import BreakevenError, StoredDataError, UsageError
from breakeven.tune import DEFAULT_BUDGET, default_budget_s

if TYPE_CHECKING:
    from breakeven.verdict import TuneReport

DEFAULT_FILE = Path("breakeven.toml")
_LEAST_MORE_S = 60.0

SUMMARY = "find the settings under which a script trains fastest, by measurement"
DESCRIPTION = """\
Try settings around an unmodified training script, such as threads, layout of
weights, fused optimizers, bfloat16 and torch.compile, and its loop with each step as
one compiled call: each against the script as it is, in fresh processes, with losses
and gradients compared. The faster ones, if any, are written to
breakeven.toml, which `breakeven run TARGET` uses. The script is never changed.
Exit code 1: done, but --write-patch had nothing to write."""
USAGE = "tune TARGET [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven tune train.py
  breakeven tune train.py --budget 5m --steps 200000 -- --lr 0.1
  breakeven tune train.py --exact -o exact.toml
  breakeven tune train.py --write-patch faster.diff"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``tune``."""
    add_target(parser)
    add_module(parser)
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="",
        help="where the step runs (default: on the GPU if there is one and the script uses it)",
    )
    parser.add_argument(
        "--budget",
        dest="budget_s",
        metavar="TIME",
        type=duration_s,
        default=0.0,
        help=f"stop after that long, such as 60, 90s or 2m (default: {DEFAULT_BUDGET})",
    )
    parser.add_argument(
        "--steps",
        dest="num_steps",
        metavar="N",
        type=whole_number,
        default=0,
        help="length of the run in steps, to pay off a slower start (default: that of the "
        "script, if it ends within some seconds)",
    )
    parser.add_argument(
        "--exact",
        dest="is_exact_only",
        action="store_true",
        help="use only settings that keep losses and gradients bit for bit the same",
    )
    parser.add_argument(
        "--batch-size",
        dest="tries_batch_size",
        action="store_true",
        help="also try larger batches, which changes the training",
    )
    parser.add_argument(
        "--no-fast-step",
        dest="uses_fast_step",
        action="store_false",
        help="do not try the step as one compiled call",
    )
    add_run(parser)
    add_json(parser, "answer")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=str(DEFAULT_FILE),
        help=f"write the settings to FILE (default: {DEFAULT_FILE}); that of an earlier tuning "
        "of TARGET is replaced",
    )
    parser.add_argument(
        "--write-patch",
        dest="patch",
        metavar="FILE",
        type=Path,
        help="write the lines that breakeven.fast_step takes in the script to FILE, for patch -p0",
    )
    add_force(parser, "-o and --write-patch replace any FILE")


def run(args: argparse.Namespace) -> int:
    """Tune the target, write the configuration, and show the report."""
    # Imported here, since --help must not wait for torch and rich.
    from breakeven.store import ensure_writable, write_document, write_tuned

    if args.patch is not None and args.patch.resolve() == args.output.resolve():
        raise UsageError("-o and --write-patch name the same file")
    may_replace = args.force or _is_of_target(args.output, args.target)
    ensure_writable(args.output, force=may_replace)
    if args.patch is not None:
        ensure_writable(args.patch, force=args.force)

    report = tune_alone(
        args.target,
        is_quiet=args.quiet,
        device=args.device,
        budget_s=args.budget_s,
        num_steps=args.num_steps,
        is_exact_only=args.is_exact_only,
        tries_batch_size=args.tries_batch_size,
        uses_fast_step=args.uses_fast_step,
        **run_options(args),
    )

    def write_files(report: TuneReport, _: argparse.Namespace) -> None:
        write_tuned(args.output, report, force=may_replace)
        if args.patch is not None and report.code_change is not None:
            diff = report.code_change.diff.encode(errors="surrogateescape")
            write_document(args.patch, diff, force=args.force)

    print_report(report, args, write=write_files, hints=lambda: next_hints(report, args))
    if args.json:
        say(f"wrote {args.output}", is_quiet=args.quiet)
    if args.patch is None or report.code_change is not None:
        return 0
    say(
        f"{args.patch} is not written: no change of the script was shown to be faster",
        is_quiet=args.quiet,
    )
    return 1


def next_hints(report: TuneReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the next commands, given the answer and the flags in use."""
    from breakeven.source import CONVERT
    from breakeven.trace import is_notebook
    from breakeven.units import NS_PER_S
    from breakeven.verdict import Numerics, Outcome

    words = ["breakeven", "run", *(["-m"] if args.is_module else []), args.target]
    if args.output != DEFAULT_FILE:
        words += ["--config", str(args.output)]
    if args.script_arguments:
        words += ["--", *args.script_arguments]
    command = shlex.join(words)
    hints: list[str] = []
    if is_notebook(args.target):
        hints.append(f"breakeven run takes no notebook: {CONVERT} {args.target}, and tune that")
    elif report.configuration.changes:
        hints.append(f"Train with it: {command}   (settings: {args.output})")
    else:
        hints.append(f"{args.output} records that, and {command} will not tune again")
    outcomes = {trial.outcome for trial in report.trials}
    if Outcome.OUT_OF_BUDGET in outcomes:
        run_s = report.num_steps * report.baseline_step_ns / NS_PER_S
        more_s = max(2 * (args.budget_s or default_budget_s(run_s)), _LEAST_MORE_S)
        hints.append(f"To decide the rest, allow more time: --budget {ceil(more_s)}s")
    needed = [
        trial.pays_off_after_steps
        for trial in report.trials
        if trial.outcome is Outcome.NOT_WORTH_IT and trial.pays_off_after_steps is not None
    ]
    if needed:
        hints.append(f"For a run of more than {min(needed):,} steps: --steps N")
    if report.configuration.changes and report.numerics is not Numerics.EXACT:
        hints.append("For results that are bit for bit the same: --exact")
    if report.code_change is not None:
        written = args.patch is not None
        hints.append(
            f"Train so with python: patch -p0 < {shlex.quote(str(args.patch))}"
            if written
            else "To train so with python, lines for patch -p0: --write-patch FILE"
        )
    return tuple(hints)


def _is_of_target(file: Path, target: str) -> bool:
    """Return whether the file comes from an earlier tuning of the target, and may be replaced.

    Raises:
        BreakevenError: The file belongs to another target.
    """
    from breakeven.store import read_tuned

    # A link may lead anywhere; a folder or a pipe has a separate error.
    if file.is_symlink() or not file.is_file():
        return False
    try:
        earlier = read_tuned(file).target
    except StoredDataError:
        return False
    if os.path.normpath(earlier) != os.path.normpath(target):
        raise BreakevenError(
            f"{file} holds the settings of {earlier} and is not overwritten",
            hint="add --force, or choose another file with -o",
        )
    return True


def tune_alone(target: str, *, is_quiet: bool, **options: Any) -> TuneReport:
    """Tune the target, after waiting for another running breakeven.

    Args:
        target: The script.
        is_quiet: Whether to hide progress.
        options: Further arguments of ``tune_target``.
    """
    from breakeven.cli.progress import show_progress
    from breakeven.store import machine_lock
    from breakeven.tune import tune_target

    busy = "the machine is busy: waiting for another breakeven to finish"
    with (
        show_progress(sys.stderr, is_quiet=is_quiet) as progress,
        machine_lock(lambda: progress.begin(busy)),
    ):
        return tune_target(target, progress=progress, **options)
