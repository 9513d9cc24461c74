"""``breakeven compare``: the differences of the second of two stored runs from the first."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from breakeven.cli.options import add_conditions, add_json, add_quiet, read_conditions
from breakeven.cli.output import exit_code, print_report
from breakeven.errors import BreakevenError

SUMMARY = "compare two stored runs: what became faster, slower, or neither"
DESCRIPTION = """\
Compare two runs of one command, stored with -o. Each step time in B is divided
by that in A: a device is faster or slower if the 90 % interval of this ratio
leaves out 1, else a change is unclear. Of a sweep, every point is compared, and
the median of each device is shown. A different machine, torch or target comes
first, since it may be why."""
USAGE = "compare A.json B.json [--fail-if CONDITION] [--json]"
EXAMPLES = """\
examples:
  breakeven compare before.json after.json
  breakeven compare before.json after.json --json
  breakeven compare before.json after.json --fail-if "slower > 10 %" --strict"""

CONDITIONS = "'slower > 10 %', 'slower > 10 % on T4', 'slower > 10 % on cpu', 'new finding'"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    parser.add_argument("before", metavar="A.json", type=Path, help="the run to compare with")
    parser.add_argument("after", metavar="B.json", type=Path, help="the run that is compared")
    add_conditions(parser, CONDITIONS)
    add_json(parser, "comparison")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Compare the runs and show the differences."""
    # Imported here, since --help must not wait for rich.
    from breakeven.report import (
        CheckReport,
        ExplainReport,
        SystemsReport,
        compare_reports,
        comparison_figures,
        read_document,
        report_command,
    )
    from breakeven.verdict import SweepReport

    conditions = read_conditions(args, CONDITIONS)
    before, after = read_document(args.before), read_document(args.after)
    if isinstance(before, ExplainReport) or isinstance(after, ExplainReport):
        raise BreakevenError(
            "breakeven compare does not compare explanations, which show the parts of one step",
            hint="compare runs of breakeven check, which have the same findings and times",
        )
    for report in (before, after):
        if not isinstance(report, CheckReport | SweepReport | SystemsReport):
            raise BreakevenError(
                f"runs of breakeven {report_command(report)} are not compared",
                hint="compare those of breakeven check, sweep or workloads",
            )
    if type(before) is not type(after):
        raise BreakevenError(
            f"{args.before} is of breakeven {report_command(before)} and {args.after} of breakeven "
            f"{report_command(after)}: they have nothing to compare",
            hint="give two runs of the same command",
        )
    comparison = compare_reports(before, after)
    print_report(comparison, args, names=(str(args.before), str(args.after)))
    figures = partial(comparison_figures, report=comparison, before=before)
    return exit_code(conditions, figures, args)
