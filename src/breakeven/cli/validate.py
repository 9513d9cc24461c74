"""``breakeven validate``: compares predictions with a table of measured steps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from breakeven.cli.options import add_force, add_output
from breakeven.cli.output import ensure_files, json_hint, print_report, write_report
from breakeven.errors import BreakevenError

SUMMARY = "compare predictions with a table of measured steps"
DESCRIPTION = """\
Predict every row of a table of measured steps, and show the errors by split,
precision, era and regime, how often the 90 % intervals hold the measured time, and
how often the faster of two devices is predicted to be faster. Nothing is measured.

TABLE.csv has the columns case_id, source, workload, device, num_devices, precision,
batch_size, phase, optimizer, host, framework, value_ms, split and note, and
optionally h2d, memory_format, compile, attention, grad_accum, act_ckpt and
parallelism. A row that cannot be predicted is listed with the reason."""
USAGE = "validate TABLE.csv [TABLE.csv ...] [options]"
EXAMPLES = """\
examples:
  breakeven validate steps.csv
  breakeven validate steps.csv --only num_devices=1 --only num_devices=2
  breakeven validate steps.csv --json -o accuracy.json"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``validate``."""
    parser.add_argument(
        "tables",
        metavar="TABLE.csv",
        type=Path,
        nargs="+",
        help="measured steps, in a file or more",
    )
    parser.add_argument(
        "--only",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="count only rows with this value in this column; may be repeated",
    )
    add_output(parser)
    add_force(parser, "-o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Predict the rows of the table, and show the errors."""
    ensure_files({"-o FILE": args.output}, args)

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.cli.progress import show_progress
    from breakeven.validate import RowFilter, ShippedPredictor, validate_table

    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        report = validate_table(
            *args.tables,
            predictor=ShippedPredictor(progress=progress),
            only=RowFilter.parse(args.only) if args.only else None,
            progress=progress,
        )
    print_report(
        report,
        args,
        write=write_report,
        hints=lambda: (json_hint(args, "accuracy.json", "row"),),
    )
    if report.overall.num_unpredicted == report.overall.num_rows:
        raise BreakevenError(
            "no row could be predicted", hint="the report names the reason of each row"
        )
    return 0
