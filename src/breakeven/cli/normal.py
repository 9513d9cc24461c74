"""``breakeven normal``: is this speed normal, or what is slow?"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from breakeven.cli.options import (
    add_comparison,
    add_force,
    add_measured,
    add_output,
    add_run,
    add_target,
    is_stored_run,
    session_options,
)
from breakeven.cli.output import ensure_files, json_hint, print_report, write_report
from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.report import NormalReport

SUMMARY = "find out whether a training step is as fast as it should be on its GPU"
DESCRIPTION = """\
Compare a step time with the one predicted for that very GPU in a typical machine.
The time is measured on a GPU of this machine, or is a speed that you saw elsewhere:
--measured. If the step is too slow, show what can explain the excess, and what to
look at first."""
USAGE = "normal TARGET|RUN.json [--measured SPEED] [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven normal train.py --measured "T4: 41 ms" -- --epochs 1
  breakeven normal run.json --measured "colab T4: 45 s/epoch"
  breakeven normal train.py   (with a GPU in this machine)"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``normal``."""
    add_target(parser, ", or a run that check or explain stored")
    add_comparison(parser)
    add_measured(parser)
    add_run(parser)
    add_output(parser)
    add_force(parser, "-o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Judge the speeds, show the answer, and write it if requested."""
    ensure_files({"-o FILE": args.output}, args)

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.cli.progress import show_progress
    from breakeven.studies import normal_run, normal_target

    measured = tuple(args.measured)
    if is_stored_run(args.target) and not args.is_module:
        if args.script_arguments or args.host != "auto":
            raise UsageError(
                f"{args.target} is a stored run: it takes neither --host nor arguments after --",
                hint="name the script itself, or the machine in --measured 'colab T4: 340 it/s'",
            )
        report = normal_run(args.target, devices=tuple(args.devices), measured=measured)
    else:
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            report = normal_target(
                args.target, measured=measured, progress=progress, **session_options(args)
            )
    print_report(
        report,
        args,
        write=write_report,
        hints=lambda: next_hints(report, args),
    )
    return 0


def next_hints(report: NormalReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the next commands, given the answer and the flags in use."""
    hints = (json_hint(args, "normal.json"),)
    if all(one.pace == "normal" for one in report.speeds):
        return hints
    where = shlex.join(("breakeven", "explain", *(["-m"] if args.is_module else []), args.target))
    return (f"Where the step should spend its time: {where}", *hints)
