"""``breakeven workloads``: systems with published figures, run here and set beside them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import add_force, add_json, add_output, add_quiet, add_time_limit
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from breakeven.systems import SystemEntry
    from breakeven.verdict import SystemReport, SystemsReport

SUMMARY = "run systems with published figures, and set ours beside them"
DESCRIPTION = """\
List the systems with which others asked whether a GPU pays off, or run them: each
is measured on this CPU, predicted on the GPUs that it names and on those of today,
and set beside the figures that were published, with what agrees and what does not.
--all runs the six and ends with one table of all claims.

The answer goes to stdout, everything else to stderr. Exit codes: 0 done,
2 wrong command line, 3 no system could be run."""
USAGE = "workloads [NAME ...] [options]"
EXAMPLES = """\
examples:
  breakeven workloads
  breakeven workloads disc-mlp
  breakeven workloads --all --json -o systems.json
  breakeven workloads rnn-stream --write-script ."""

DEFAULT_TIME_LIMIT_S = 120.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``workloads``."""
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="system to run (default: list them all)"
    )
    parser.add_argument("--all", dest="is_all", action="store_true", help="run the six systems")
    parser.add_argument(
        "--host",
        metavar="here|KIND|NAME",
        default="auto",
        help="machine that feeds the GPUs, where a system does not name one, as for check",
    )
    add_time_limit(parser, default_s=DEFAULT_TIME_LIMIT_S, script="a script")
    parser.add_argument(
        "--write-script",
        dest="folder",
        metavar="DIR",
        type=Path,
        help="run nothing, but write the scripts of the systems named to DIR",
    )
    add_json(parser)
    add_output(parser)
    add_force(parser, "-o and --write-script replace files")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """List, run or write out systems."""
    # Imported here, since --help must not wait for torch and rich.
    from breakeven.systems import SYSTEMS, find_systems

    chosen = find_systems(args.names)
    if args.is_all:
        chosen = tuple(dict.fromkeys((*SYSTEMS, *chosen)))
    _ensure_sensible(args, chosen)
    if not chosen:
        _list_systems()
        return 0
    if args.folder is not None:
        return _write_scripts(chosen, args)
    return _run_systems(chosen, args)


def _ensure_sensible(args: argparse.Namespace, chosen: Sequence[SystemEntry]) -> None:
    options = (
        ("--json", args.json),
        ("-o", args.output is not None),
        ("--write-script", args.folder is not None),
    )
    for option, is_given in options:
        if is_given and not chosen:
            raise UsageError(f"{option} needs a system", hint="name one, or say --all")
    if args.folder is not None and (args.json or args.output is not None):
        raise UsageError("--write-script runs nothing, so there is no report for --json or -o")
    if args.force and args.output is None and args.folder is None:
        raise UsageError("--force is about -o FILE and --write-script DIR, which were not given")


def _list_systems() -> None:
    from rich.padding import Padding
    from rich.text import Text

    from breakeven.cli.console import CommandConsole
    from breakeven.systems import SYSTEMS

    console = CommandConsole()
    for entry in SYSTEMS:
        console.print(Text(entry.name, style="bold"))
        lines = [entry.title, f"published: {entry.published}", f"takes {_about(entry.about_s)}"]
        for number, line in enumerate(lines):
            text = Text(line, style="dim" if number else "")
            console.print(Padding(text, (0, 0, 0, 2), expand=False))
    console.line()
    for hint in ("Run one: breakeven workloads NAME", "Run the six: breakeven workloads --all"):
        console.print(Text(hint, style="dim"))


def _about(duration_s: float) -> str:
    if duration_s < 60:
        return "less than a minute"
    minutes = round(duration_s / 60)
    return "about a minute" if minutes == 1 else f"about {minutes} minutes"


def _write_scripts(chosen: Sequence[SystemEntry], args: argparse.Namespace) -> int:
    from breakeven.cli.console import CommandConsole
    from breakeven.report import printable
    from breakeven.store import ensure_writable, write_document
    from breakeven.systems import script_path

    if not args.folder.is_dir():
        raise BreakevenError(f"there is no folder {args.folder}", hint="make it first: mkdir")
    scripts = dict.fromkeys(script for entry in chosen for script in entry.scripts)
    targets = {script: args.folder / script for script in scripts}
    for target in targets.values():
        ensure_writable(target, force=args.force)
    console = CommandConsole()
    for script, target in targets.items():
        write_document(target, script_path(script).read_bytes(), force=args.force)
        console.print(printable(str(target), None), soft_wrap=True, markup=False)
    return 0


def _run_systems(chosen: Sequence[SystemEntry], args: argparse.Namespace) -> int:
    from breakeven.calibrate import check_host_name
    from breakeven.cli.output import write_stdout
    from breakeven.report import to_json
    from breakeven.store import ensure_writable, write_document
    from breakeven.verdict import SYSTEMS_SCHEMA_VERSION, SystemsReport

    check_host_name(args.host)
    if args.output is not None:
        ensure_writable(args.output, force=args.force)
    systems: list[SystemReport] = []
    failures: dict[str, str] = {}
    for number, entry in enumerate(chosen, start=1):
        stage = entry.name if len(chosen) == 1 else f"{entry.name} ({number} of {len(chosen)})"
        try:
            systems.append(_run_one(entry, stage, args))
        except BreakevenError as error:
            if len(chosen) == 1:
                raise
            failures[entry.name] = error.message + (f"; {error.hint}" if error.hint else "")
    report = SystemsReport(
        schema_version=SYSTEMS_SCHEMA_VERSION, systems=tuple(systems), failures=failures
    )
    document = to_json(report)
    try:
        if args.output is not None:
            write_document(args.output, document, force=args.force)
    finally:
        # The answer took the user's time: a full disk must not lose it.
        if args.json:
            write_stdout(document)
        else:
            _show_end(report, args)
    if not systems:
        raise BreakevenError("no system could be run", hint="the reason of each is named above")
    return 0


def _run_one(entry: SystemEntry, stage: str, args: argparse.Namespace) -> SystemReport:
    """Run a system and show it at once, so that an interrupt loses nothing that was shown."""
    from breakeven.cli.console import CommandConsole
    from breakeven.cli.progress import show_progress
    from breakeven.report import render, system_document
    from breakeven.systems import run_system

    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        progress.begin(stage, entry.about_s)
        report = run_system(
            entry, host=args.host, time_limit_s=args.time_limit_s, progress=progress
        )
        progress.end()
    if not args.json:
        console = CommandConsole()
        render(system_document(report), console)
        console.line()
        sys.stdout.flush()
    return report


def _show_end(report: SystemsReport, args: argparse.Namespace) -> None:
    """Show the table of all claims where there are several systems, and what to do next."""
    from rich.text import Text

    from breakeven.cli.console import CommandConsole
    from breakeven.report import claims_document, render

    console = CommandConsole()
    if len(report.systems) + len(report.failures) > 1:
        render(claims_document(report), console)
        console.line()
    if args.output is not None:
        hint = f"Every number as JSON: {args.output}"
    else:
        hint = "Every number as JSON: --json, or -o systems.json"
    console.print(Text(hint, style="dim"), soft_wrap=True)
