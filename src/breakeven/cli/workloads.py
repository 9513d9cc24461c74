"""``breakeven workloads``: runs systems with published figures, and compares the figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import add_force, add_output, add_time_limit
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from breakeven.report import SystemReport
    from breakeven.systems import SystemEntry

SUMMARY = "run systems with published figures, and compare ours with them"
DESCRIPTION = """\
List systems from papers that ask whether a GPU pays off, or run them: each is
measured on this CPU, predicted on the GPUs of its paper and on current ones, and
compared with the published figures. --all runs the six and ends with one table
of all claims."""
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
        help="machine that feeds the GPUs if a system names none, as for check",
    )
    add_time_limit(parser, DEFAULT_TIME_LIMIT_S, "a script")
    parser.add_argument(
        "--write-script",
        dest="folder",
        metavar="DIR",
        type=Path,
        help="run nothing, but write the scripts of the systems named to DIR",
    )
    add_output(parser)
    add_force(parser, "-o and --write-script replace files")


def run(args: argparse.Namespace) -> int:
    """List, run or write out systems."""
    # Imported here, since --help must not wait for torch and rich.
    from breakeven.systems import SYSTEMS, find_systems

    chosen = find_systems(args.names)
    if args.is_all:
        chosen = tuple(dict.fromkeys((*SYSTEMS, *chosen)))
    if not chosen:
        for option, value in (
            ("--json", args.json),
            ("-o", args.output),
            ("--write-script", args.folder),
        ):
            if value:
                raise UsageError(f"{option} needs a system", hint="name one, or say --all")
    if args.folder is not None and (args.json or args.output is not None):
        raise UsageError("--write-script runs nothing, so there is no report for --json or -o")
    if args.force and args.output is None and args.folder is None:
        raise UsageError("--force is about -o FILE and --write-script DIR, which were not given")
    if not chosen:
        _list_systems()
    elif args.folder is not None:
        _write_scripts(chosen, args)
    else:
        _run_systems(chosen, args)
    return 0


def _list_systems() -> None:
    from breakeven.cli.console import CommandConsole
    from breakeven.report import render
    from breakeven.report.document import Document, Line
    from breakeven.systems import SYSTEMS

    lines: list[Line] = []
    for entry in SYSTEMS:
        minutes = round(entry.about_s / 60)
        about = "a minute" if minutes == 1 else f"{minutes} minutes"
        takes = "less than a minute" if entry.about_s < 60 else f"about {about}"
        lines += [
            Line(entry.name, "bold"),
            Line(entry.title, indent=2),
            Line(f"published: {entry.published}", "dim", 2),
            Line(f"takes {takes}", "dim", 2),
        ]
    hints = ("Run one: breakeven workloads NAME", "Run the six: breakeven workloads --all")
    render(Document(title="Workloads", blocks=lines), CommandConsole(), hints=hints)


def _write_scripts(chosen: Sequence[SystemEntry], args: argparse.Namespace) -> None:
    from breakeven.cli.output import write_stdout
    from breakeven.report import printable
    from breakeven.store import ensure_writable, write_document
    from breakeven.systems import script_path

    if not args.folder.is_dir():
        raise BreakevenError(f"there is no folder {args.folder}", hint="make it first: mkdir")
    scripts = dict.fromkeys(script for entry in chosen for script in entry.scripts)
    for script in scripts:
        ensure_writable(args.folder / script, force=args.force)
    for script in scripts:
        target = args.folder / script
        write_document(target, script_path(script).read_bytes(), force=args.force)
        write_stdout(f"{printable(str(target), None)}\n".encode())


def _run_systems(chosen: Sequence[SystemEntry], args: argparse.Namespace) -> None:
    from breakeven.calibrate import check_host_name
    from breakeven.cli.console import CommandConsole
    from breakeven.cli.output import json_hint, write_report, write_stdout
    from breakeven.cli.progress import show_progress
    from breakeven.report import (
        SYSTEMS_SCHEMA_VERSION,
        SystemsReport,
        claims_document,
        render,
        system_document,
        to_json,
    )
    from breakeven.store import ensure_writable
    from breakeven.systems import run_system

    check_host_name(args.host)
    if args.output is not None:
        ensure_writable(args.output, force=args.force)
    console = CommandConsole()
    systems: list[SystemReport] = []
    failures: dict[str, str] = {}
    for number, entry in enumerate(chosen, start=1):
        stage = entry.name if len(chosen) == 1 else f"{entry.name} ({number} of {len(chosen)})"
        try:
            with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
                progress.begin(stage, entry.about_s)
                system = run_system(
                    entry, host=args.host, time_limit_s=args.time_limit_s, progress=progress
                )
                progress.end()
        except BreakevenError as error:
            if len(chosen) == 1:
                raise
            failures[entry.name] = error.message + (f"; {error.hint}" if error.hint else "")
            continue
        systems.append(system)
        # Show each system at once, so that an interrupt loses nothing.
        if not args.json:
            render(system_document(system), console)
            console.line()
            sys.stdout.flush()
    report = SystemsReport(
        schema_version=SYSTEMS_SCHEMA_VERSION, systems=tuple(systems), failures=failures
    )
    try:
        write_report(report, args)
    finally:
        # The answer cost the user's time: a full disk must not lose it.
        if args.json:
            write_stdout(to_json(report))
        else:
            if len(chosen) > 1:
                render(claims_document(report), console)
                console.line()
            console.print(
                json_hint(args, "systems.json"), style="dim", soft_wrap=True, markup=False
            )
    if not systems:
        raise BreakevenError("no system could be run", hint="the reason of each is named above")
