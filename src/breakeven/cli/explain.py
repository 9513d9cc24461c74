"""``breakeven explain``: why the GPU is (not) faster, line by line, with the gain of each fix."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
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
from breakeven.cli.output import ensure_files, print_report, write_report
from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.report import ExplainReport

SUMMARY = "show why a GPU is (not) faster, line by line, with the gain of each fix"
DESCRIPTION = """\
Analyse the training step of a script, without a GPU: its time on the GPU by cause,
line and module; the causes of lost time, with the line and the gain of each fix; and
the step on every device after each further fix. TARGET is a script, or the
file that check or explain wrote with -o, which is explained without a run."""
USAGE = "explain TARGET|RUN.json [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven explain train.py
  breakeven explain train.py --device "RTX 4090" --trace step.json
  breakeven explain train.py --rule SYNC001 --json
  breakeven explain run.json --device T4"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_target(parser, "; or a RUN.json that check or explain wrote")
    add_comparison(parser)
    parser.add_argument(
        "--rule",
        dest="rules",
        metavar="CODE",
        action="append",
        default=[],
        help="only findings of this rule, by code or cause; may be repeated "
        "(all rules: breakeven rules)",
    )
    add_measured(parser)
    add_run(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write both timelines of the step to FILE, for ui.perfetto.dev or chrome://tracing",
    )
    add_output(parser, "explanation", has_recording=True)
    add_force(parser, "-o and --trace replace FILE")


def run(args: argparse.Namespace) -> int:
    """Explain the target, show the explanation, and write it if requested."""
    ensure_files({"-o FILE": args.output, "--trace FILE": args.trace}, args)

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.cli.progress import show_progress
    from breakeven.studies import explain_run, explain_target

    if is_stored_run(args.target) and not args.is_module:
        stored = f"{args.target} is a stored run: "
        if args.script_arguments:
            raise UsageError(f"{stored}nothing after -- can reach its script")
        if args.host != "auto" or args.measured:
            option = "--measured" if args.measured else "--host"
            raise UsageError(
                f"{stored}its host is the one that it was recorded on",
                hint=f"explain the script itself with {option}",
            )
        devices, rules = tuple(args.devices), tuple(args.rules)
        report = explain_run(args.target, devices=devices, rules=rules)
    else:
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            report = explain_target(
                args.target,
                rules=tuple(args.rules),
                measured=tuple(args.measured),
                progress=progress,
                **session_options(args),
            )
    print_report(
        report,
        args,
        write=_write_files,
        hints=lambda: next_hints(report, args),
        # If the user names a rule, show its evidence.
        shows_evidence=bool(args.rules),
    )
    return 0


def _write_files(report: ExplainReport, args: argparse.Namespace) -> None:
    from msgspec.structs import replace

    from breakeven.report import chrome_trace
    from breakeven.store import write_document
    from breakeven.studies import full_timeline

    write_report(report, args)
    if args.trace is not None:
        trace = chrome_trace(replace(report, timeline=full_timeline(report)))
        write_document(args.trace, trace, force=args.force)


def next_hints(report: ExplainReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the next commands, given the answer and the flags in use."""
    hints: list[str] = []
    if report.findings:
        code = report.findings[0].code
        hints.append(f"What a finding means, with code before and after: breakeven rules {code}")
    if not args.devices:
        hints.append("Another GPU: --device NAME (all names: breakeven devices)")
    if args.trace is not None:
        hints.append(f"Both timelines: open {args.trace} at ui.perfetto.dev")
    elif args.output is not None and is_stored_run(args.output):
        again = shlex.join(("breakeven", "explain", str(args.output)))
        hints.append(f"Again, for other GPUs, without a run: {again}")
    else:
        hints.append("Both timelines for a viewer: --trace FILE; as a page: -o, then report")
    return tuple(hints)
