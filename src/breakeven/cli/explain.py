"""``breakeven explain``: why the GPU is (not) faster, line by line, with the gain of each fix."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import (
    add_comparison,
    add_keep,
    add_stored_run,
    add_target,
    add_time_limit,
    ensure_output,
    is_stored_run,
    session_options,
)
from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.verdict import ExplainReport

SUMMARY = "tell why a GPU is (not) faster, line by line, with the gain of each fix"
DESCRIPTION = """\
Take the training step of a script apart, without a GPU: what each microsecond on
the GPU is spent on, by cause, line and module; what slows it down, at which line,
what to change and what that gains; and the step on every device after one fix
after another. TARGET is a script, or the file that check or explain wrote with
-o, which is explained without running anything.

The answer goes to stdout, everything else to stderr. Exit codes: 0 done,
2 wrong command line, 3 no answer (the script failed, an unknown device, ...)."""
USAGE = "explain TARGET|RUN.json [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven explain train.py
  breakeven explain train.py --device "RTX 4090" --trace step.json
  breakeven explain train.py --rule SYNC001 --json
  breakeven explain run.json --device T4"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_target(parser, more="; or a RUN.json that check or explain wrote")
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
    add_time_limit(parser)
    add_keep(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write both timelines of the step to FILE, for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    add_stored_run(parser, document="explanation")
    parser.add_argument("--force", action="store_true", help="let -o and --trace replace FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show progress on stderr")
    parser.add_argument_group(
        "arguments of the script", "-- ARGS ...  everything after -- is passed on to the script"
    )


def run(args: argparse.Namespace) -> int:
    """Explain the target, show the explanation, and write it where asked."""
    # Imported here, since --help must not wait for torch and rich.
    from breakeven.store import ensure_writable, write_document

    ensure_output(args)
    files = [file for file in (args.output, args.trace) if file is not None]
    if args.force and not files:
        raise UsageError("--force is about -o FILE and --trace FILE, which were not given")
    if len({file.resolve() for file in files}) < len(files):
        raise UsageError("-o and --trace name the same file")
    for file in files:
        ensure_writable(file, force=args.force)

    from breakeven.cli.output import write_stdout
    from breakeven.report import to_json
    from breakeven.verdict import without_source

    report = _explain(args)
    try:
        if args.output is not None:
            stored = report if args.has_source else without_source(report)
            document = to_json(stored, with_recording=True)
            write_document(args.output, document, force=args.force)
        if args.trace is not None:
            write_document(args.trace, _trace(report), force=args.force)
    finally:
        # The answer took the user's time: a full disk must not lose it.
        if args.json:
            write_stdout(to_json(report))
        else:
            _render(report, args)
    return 0


def _explain(args: argparse.Namespace) -> ExplainReport:
    if is_stored_run(args.target) and not args.is_module:
        return _explain_stored(args)

    from breakeven.cli.progress import show_progress
    from breakeven.explain import explain_target

    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        return explain_target(
            args.target,
            **session_options(args),
            rules=tuple(args.rules),
            progress=progress,
        )


def _explain_stored(args: argparse.Namespace) -> ExplainReport:
    from breakeven.explain import explain_run

    if args.script_arguments:
        raise UsageError(f"{args.target} is a stored run: nothing after -- can reach its script")
    if args.host != "here":
        raise UsageError(
            f"{args.target} is a stored run: its host is the one that it was recorded on",
            hint="explain the script itself with --host",
        )
    return explain_run(args.target, devices=tuple(args.devices), rules=tuple(args.rules))


def _trace(report: ExplainReport) -> bytes:
    from msgspec.structs import replace

    from breakeven.explain import full_timeline
    from breakeven.report import chrome_trace

    return chrome_trace(replace(report, timeline=full_timeline(report)))


def next_hints(report: ExplainReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return what to do next, given the answer and the flags in use."""
    hints: list[str] = []
    codes = list(dict.fromkeys(finding.code for finding in report.findings))
    if codes:
        hints.append(
            f"What a finding means, with code before and after: breakeven rules {codes[0]}"
        )
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


def _render(report: ExplainReport, args: argparse.Namespace) -> None:
    from breakeven.cli.console import CommandConsole
    from breakeven.report import show

    show(
        report,
        CommandConsole(),
        hints=next_hints(report, args),
        # Who asks for one rule wants to know what it saw.
        shows_evidence=bool(args.rules),
    )
