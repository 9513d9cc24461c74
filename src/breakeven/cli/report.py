"""``breakeven report``: show a stored run again, or write it as a page or a chart."""

from __future__ import annotations

import argparse
from pathlib import Path

from breakeven.cli.output import ensure_files

SUMMARY = "show a stored run again, or write it as a page or a chart"
DESCRIPTION = """\
Show a run that `breakeven check`, `explain`, `sweep` or `workloads` stored with
-o. With -o, write it to a file instead: .html is one page that needs no network,
with all figures, curves to explore by pointer or keyboard, and fit to print; .svg
and .png are its charts alone (.png needs matplotlib). A run of workloads has
neither page nor chart."""
USAGE = "report RUN.json [-o FILE.html|.png|.svg] [--force]"
EXAMPLES = """\
examples:
  breakeven report run.json
  breakeven report run.json -o report.html
  breakeven report sweep.json -o sweep.svg --force"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.add_argument(
        "run_file", metavar="RUN.json", type=Path, help="what a command wrote with -o"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write a page (.html) or the charts (.png, .svg) to FILE",
    )
    parser.add_argument("--force", action="store_true", help="let -o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Show the stored run, or write it to a file if requested."""
    ensure_files({"-o FILE": args.output}, args)

    # Imported here, since --help must not wait for rich.
    from breakeven.cli.console import CommandConsole
    from breakeven.report import chart_document, ensure_can_chart, read_document, show
    from breakeven.store import write_document

    if args.output is None:
        hints = ("As a page with all figures: add -o report.html",)
        show(read_document(args.run_file), CommandConsole(), hints=hints)
        return 0
    suffix = args.output.suffix.lower()
    ensure_can_chart(suffix)
    document = chart_document(read_document(args.run_file), suffix)
    write_document(args.output, document, force=args.force)
    return 0
