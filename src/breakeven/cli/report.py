"""``breakeven report``: show a stored run again, or write it as a page, chart or annotations."""

from __future__ import annotations

import argparse
from pathlib import Path

from breakeven.cli.output import ensure_files, write_stdout

SUMMARY = "show a stored run again, or write it as a page or a chart"
DESCRIPTION = """\
Show a run that `breakeven check`, `explain`, `sweep` or `workloads` stored with
-o. With -o, write it to a file instead: .html is one page that needs no network,
with all figures, curves to explore by pointer or keyboard, and fit to print; .svg
and .png are its charts alone (.png needs matplotlib). A run of workloads has
neither page nor chart. With --format, print the findings for a code host."""
USAGE = "report RUN.json [-o FILE] [--format github|sarif] [--force]"
EXAMPLES = """\
examples:
  breakeven report run.json
  breakeven report run.json -o report.html
  breakeven report sweep.json -o sweep.svg --force
  breakeven report run.json --format sarif -o breakeven.sarif"""


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
    parser.add_argument(
        "--format",
        choices=("github", "sarif"),
        help="print the findings of check or explain as GitHub annotations or SARIF 2.1.0; with "
        "-o, write them to FILE",
    )
    parser.add_argument("--force", action="store_true", help="let -o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Show the stored run, or write it to a file if requested."""
    ensure_files({"-o FILE": args.output}, args)

    # Imported here, since --help must not wait for rich.
    from breakeven.cli.console import CommandConsole
    from breakeven.report import chart_document, finding_annotations, read_document, show
    from breakeven.store import write_document

    report = read_document(args.run_file)
    if args.format is not None:
        document = finding_annotations(report, args.format)
    elif args.output is not None:
        document = chart_document(report, args.output.suffix)
    else:
        show(report, CommandConsole(), hints=("As a page with all figures: add -o report.html",))
        return 0
    if args.output is not None:
        write_document(args.output, document, force=args.force)
    else:
        write_stdout(document)
    return 0
