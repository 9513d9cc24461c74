"""``breakeven validate``: how far off are the predictions, on a table of measured steps?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import add_force, add_json, add_output, add_quiet
from breakeven.cli.output import ensure_files, give_answer
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    from breakeven.validate import ErrorBudget
    from breakeven.verdict import AccuracyReport, LeaveOut

SUMMARY = "compare predictions with a table of measured steps"
DESCRIPTION = """\
Predict every row of a table of measured steps, and show the errors by split,
precision, era and regime, how often the 90 % intervals hold the measured time, and
how often the faster of two devices is predicted to be faster. Nothing is measured,
but for rows of CPUs with --measure-cpus.

TABLE.csv has the columns case_id, source, workload, device, num_devices, precision,
batch_size, phase, optimizer, host, framework, value_ms, split and note, and
optionally h2d, repeats, memory_format, compile, attention, grad_accum, act_ckpt and
parallelism. A row that cannot be predicted is listed with the reason.

Exit codes: 0 done, 1 done and a budget is exceeded, 2 wrong command line,
3 no answer (a bad cell, a missing column, no row that can be predicted, ...)."""
USAGE = "validate TABLE.csv [TABLE.csv ...] [options]"
EXAMPLES = """\
examples:
  breakeven validate steps.csv
  breakeven validate steps.csv --leave-out gpu --only num_devices=1
  breakeven validate steps.csv --json -o accuracy.json
  breakeven validate steps.csv --measure-cpus --only "device=Core i9-10940X"
  breakeven validate steps.csv --budget budgets.toml --report accuracy/"""

_LEAVE_OUT = ("none", "gpu", "model", "source")
_PAGE_NAME = "accuracy.md"


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
        "--leave-out",
        metavar="none|gpu|model|source",
        choices=_LEAVE_OUT,
        default="none",
        help="predict each GPU, each model family, or each source, by a calibration that has seen "
        "nothing of it, fitted to the other rows of TABLE.csv (default: none, the calibration that "
        "ships)",
    )
    parser.add_argument(
        "--only",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="count only rows with this value in this column; may be repeated",
    )
    parser.add_argument(
        "--measure-cpus",
        action="store_true",
        help="also predict rows whose device is a CPU: time their steps on one core of this one, "
        "some seconds each",
    )
    parser.add_argument(
        "--budget",
        metavar="FILE.toml",
        type=Path,
        help="end with 1 where a group of rows is worse than FILE.toml allows",
    )
    add_json(parser)
    add_output(parser)
    parser.add_argument(
        "--report",
        metavar="DIR",
        type=Path,
        help=f"also write {_PAGE_NAME} and a scatter plot (SVG) to DIR; needs matplotlib",
    )
    add_force(parser, "-o and --report replace files")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Validate the table, show the report, write it where asked, and judge it by its budgets."""
    # Imported here, since --help must not wait for torch and rich.
    from breakeven.verdict import LeaveOut

    protocol = LeaveOut(args.leave_out)
    if args.measure_cpus and protocol is not LeaveOut.NONE:
        raise UsageError(
            "--measure-cpus and --leave-out do not go together",
            hint="steps on CPUs are predicted by the calibration that ships alone",
        )
    _ensure_writable(args, protocol)

    from breakeven.cli.progress import show_progress
    from breakeven.cost import era_of
    from breakeven.validate import (
        MeasuredCpus,
        RowFilter,
        predictor_for,
        read_budgets,
        validate_table,
    )

    only = RowFilter.parse(args.only) if args.only else None
    budgets = () if args.budget is None else read_budgets(args.budget, protocol=protocol)
    with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
        report = validate_table(
            *args.tables,
            predictor=predictor_for(protocol, progress=progress),
            protocol=protocol,
            era_of=era_of,
            cpus=MeasuredCpus(progress=progress) if args.measure_cpus else None,
            only=only,
            progress=progress,
        )
    give_answer(
        report,
        lambda: _write_files(report, args),
        is_json=args.json,
        hints=lambda: next_hints(report, args),
    )
    return _judge(report, budgets, args)


def _ensure_writable(args: argparse.Namespace, protocol: LeaveOut) -> None:
    from breakeven.store import ensure_writable

    ensure_files({"-o FILE": args.output, "--report DIR": args.report}, force=args.force)
    if args.report is None:
        return
    from breakeven.report import ensure_can_plot, plot_name

    ensure_can_plot()
    try:
        args.report.mkdir(exist_ok=True)
    except OSError as error:
        raise BreakevenError(
            f"cannot make the folder {args.report}: {error.strerror}",
            hint="choose another folder with --report",
        ) from error
    for name in (_PAGE_NAME, plot_name(protocol)):
        ensure_writable(args.report / name, force=args.force)


def _write_files(report: AccuracyReport, args: argparse.Namespace) -> None:
    from breakeven.report import plot_name, render_markdown, scatter_svg, to_json, validation_page
    from breakeven.store import write_document

    if args.output is not None:
        write_document(args.output, to_json(report), force=args.force)
    if args.report is None:
        return
    plot = scatter_svg(report)
    plots = {} if plot is None else {report.protocol: plot_name(report.protocol)}
    shown = validation_page((report,), plots=plots)
    page = render_markdown(
        shown, notice="Written by `breakeven validate --report`; do not edit by hand."
    )
    write_document(args.report / _PAGE_NAME, page.encode(), force=args.force)
    if plot is not None:
        write_document(args.report / plot_name(report.protocol), plot, force=args.force)


def next_hints(report: AccuracyReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return what to do next, given the answer and the flags in use."""
    hints: list[str] = []
    if report.overall.num_calibrated_on > 0 and args.leave_out == "none":
        hints.append("Errors on what is new to the calibration: --leave-out gpu, model or source")
    if args.output is not None:
        hints.append(f"Every row as JSON: {args.output}")
    else:
        hints.append("Every row as JSON: --json, or -o accuracy.json")
    return tuple(hints)


def _judge(
    report: AccuracyReport, budgets: tuple[ErrorBudget, ...], args: argparse.Namespace
) -> int:
    from breakeven.cli.console import CommandConsole
    from breakeven.report import printable
    from breakeven.validate import exceeded_budgets

    if report.overall.num_unpredicted == report.overall.num_rows:
        raise BreakevenError(
            "no row could be predicted", hint="the report names the reason of each row"
        )
    breaches = exceeded_budgets(report, budgets)
    console = CommandConsole(stderr=True)
    for breach in breaches:
        console.print(f"over budget: {printable(breach)}", soft_wrap=True, markup=False)
    if args.budget is not None and not breaches and not args.quiet:
        kept = "1 budget" if len(budgets) == 1 else f"all {len(budgets)} budgets"
        console.print(f"within {kept} of {printable(str(args.budget))}", soft_wrap=True)
    return 1 if breaches else 0
