"""``breakeven check``: does a GPU pay off for this script's training step?"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING

from breakeven.cli.options import (
    add_comparison,
    add_conditions,
    add_force,
    add_measured,
    add_output,
    add_run,
    add_target,
    is_stored_run,
    read_conditions,
    session_options,
    whole_number,
)
from breakeven.cli.output import ensure_files, exit_code, json_hint, print_report, write_report
from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.report import CheckReport

SUMMARY = "find out whether a GPU pays off for a training script, without a GPU"
DESCRIPTION = """\
Run an unmodified training script for some steps, and show whether a GPU would be
faster, from which batch size on, and why. Devices of this machine are measured, all
others are predicted. Files that the script writes are discarded."""
USAGE = "check TARGET [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven check train.py
  breakeven check train.py --device "RTX 4090" --device T4 -- --epochs 1
  breakeven check train.py --device A100 --device "8 cores of EPYC 7R13"
  breakeven check train.py --steps 100000
  breakeven check train.py --fail-if "step > 5 ms on T4"
  breakeven check train.py --measured "T4: 340 it/s"
  breakeven check train.py --compile reduce-overhead
  breakeven check train.py:train_step --json -o report.json
  breakeven check -m mypackage.train"""

CONDITIONS = (
    "'step > 5 ms on T4', 'step > 2 ms on cpu', 'memory > 14 GB on T4', 'training > 3 h on A100', "
    "'finding SYNC001', 'findings > 3', 'verdict is cpu'"
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check``."""
    add_target(parser)
    add_comparison(
        parser,
        ", or an absent CPU to predict too, such as i9-10940X or '4 cores of EPYC 7763'",
    )
    add_measured(parser)
    add_run(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        metavar="N",
        type=whole_number,
        help="also show how long N training steps take on each device",
    )
    length.add_argument(
        "--epochs",
        metavar="N",
        type=whole_number,
        help="the same for N passes over the data of the script's DataLoader",
    )
    parser.add_argument(
        "--no-fast-step",
        action="store_false",
        dest="tries_generated",
        help="skip timing a generated C version of a short step, which takes some seconds",
    )
    parser.add_argument(
        "--compile",
        metavar="MODE",
        nargs="?",
        const="default",
        choices=("default", "reduce-overhead", "max-autotune"),
        dest="compile_mode",
        help="also predict the step compiled by torch.compile on each GPU: default (the "
        "default), reduce-overhead or max-autotune",
    )
    add_conditions(parser, CONDITIONS)
    add_output(parser, has_recording=True)
    add_force(parser, "-o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Check the target, show the report, and write it if requested."""
    ensure_files({"-o FILE": args.output}, args)
    conditions = read_conditions(args, CONDITIONS)
    subjects = {one.subject for one in conditions}
    if "training" in subjects and args.steps is None and args.epochs is None:
        raise UsageError("--fail-if 'training > …' needs --steps N or --epochs N")
    named = [one.device for one in conditions if one.device not in ("", "cpu")]

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.capture import Launcher
    from breakeven.cli.progress import show_progress
    from breakeven.device import default_devices
    from breakeven.report import check_figures

    options = session_options(args)
    if named:
        chosen = args.devices or [spec.id for spec in default_devices()]
        options["devices"] = (*chosen, *named)
    with (
        Launcher(options["keep"]) as launcher,
        show_progress(sys.stderr, is_quiet=args.quiet) as progress,
    ):
        # The launcher's process imports torch meanwhile.
        from breakeven.simulate import CompileMode
        from breakeven.studies import TrainingLength, check_target

        report = check_target(
            args.target,
            length=TrainingLength(num_steps=args.steps, num_epochs=args.epochs),
            tries_generated=args.tries_generated,
            compile_mode=args.compile_mode and CompileMode(args.compile_mode),
            progress=progress,
            measured=tuple(args.measured),
            knows_other_cpus=args.output is not None,
            launcher=launcher,
            **options,
        )
    print_report(
        report,
        args,
        write=write_report,
        hints=lambda: next_hints(report, args),
    )
    return exit_code(conditions, partial(check_figures, report=report), args)


def next_hints(report: CheckReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the next commands, given the answer and the flags in use."""
    from breakeven.verdict import Choice

    hints: list[str] = []
    if report.findings:
        # A stored run can be explained without running the script.
        again = ("breakeven", "explain", str(args.output))
        if args.output is None or not is_stored_run(args.output):
            arguments = ("--", *args.script_arguments) if args.script_arguments else ()
            module = ("-m",) if args.is_module else ()
            again = ("breakeven", "explain", *module, args.target, *arguments)
        hints.append(f"Where the time goes, and what each fix gains: {shlex.join(again)}")
    if report.verdict.choice is Choice.TOO_CLOSE:
        hints.append(
            f"To settle it, run the same command on a machine with the {report.verdict.device}, "
            "which is then measured."
        )
    if report.verdict.choice is Choice.UNDECIDED:
        hints.append("To settle it, run the same command again, on an idle machine.")
    if not args.devices:
        hints.append("Other GPUs: --device NAME (all names: breakeven devices)")
    return (*hints, json_hint(args, "report.json"))
