"""``breakeven report``: show a stored run again, or write it as a page, chart or annotations."""

from __future__ import annotations

import argparse
from pathlib import Path

from breakeven.cli.options import whole_number
from breakeven.cli.output import ensure_files, write_stdout
from breakeven.errors import UsageError

SUMMARY = "show a stored run again, or write it as a page or a chart"
DESCRIPTION = """\
Show a run that `breakeven check`, `explain`, `sweep` or `workloads` stored with
-o. With -o, write it to a file instead: .html is one page that needs no network,
with all figures, curves to explore by pointer or keyboard, and fit to print; .svg
is its charts alone. A run of workloads has neither page nor chart. With
--format, print the findings for a code host. With --card, print a short summary
with costs, for a README or a pull request."""
USAGE = "report RUN.json [-o FILE] [--format github|sarif] [--card [--steps N]] [--force]"
EXAMPLES = """\
examples:
  breakeven report run.json
  breakeven report run.json -o report.html
  breakeven report sweep.json -o sweep.svg --force
  breakeven report run.json --format sarif -o breakeven.sarif
  breakeven report run.json --card --steps 1e6 -o card.svg"""


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
        help="write a page (.html), the charts (.svg) or the card (.md, .svg) to FILE",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--card",
        action="store_true",
        help="print times and costs of a run of check or explain as Markdown; -o FILE.svg writes "
        "them as an image",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=whole_number,
        help="length of the training for --card (default: as stored)",
    )
    form.add_argument(
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

    if args.steps and not args.card:
        raise UsageError("--steps is the length of the training for --card", hint="add --card")
    if args.card:
        return _card(args)
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


def _card(args: argparse.Namespace) -> int:
    # Imported here, since a stored run shows without torch.
    from breakeven.report import card_document, read_document
    from breakeven.store import write_document
    from breakeven.studies import CostRequest, TrainingLength, cost_run

    suffix = args.output.suffix.lower() if args.output else ".md"
    if suffix not in (".md", ".svg"):
        raise UsageError(
            f"no card is written as {args.output}", hint="name a file that ends in .md or .svg"
        )
    cost = cost_run(args.run_file, CostRequest(length=TrainingLength(num_steps=args.steps)))
    card = card_document(read_document(args.run_file), cost, suffix)
    if args.output:
        write_document(args.output, card, force=args.force)
    else:
        write_stdout(card)
    return 0
