"""Predict a table of measured steps by a calibration that has not seen it, and keep to budgets.

    python -m lab.validate TABLE.csv ... --leave-out gpu --only num_devices=1 --budget FILE.toml

Each GPU, model family or source is predicted by a calibration that is fitted to the other rows of
the table. This ends with 1 if a group of rows is worse than FILE.toml allows. `breakeven validate`
predicts the same rows by the calibration that ships.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from breakeven.cli.console import CommandConsole
from breakeven.cli.progress import show_progress
from breakeven.errors import BreakevenError
from breakeven.progress import Progress
from breakeven.report import AccuracyReport, AccuracySummary, LeaveOut, printable, show, to_json
from breakeven.store import ensure_writable, write_document
from breakeven.units import format_digits
from breakeven.validate import GROUPINGS, Predictor, RowFilter, ShippedPredictor, validate_table
from lab.held_out import HeldOutPredictor


def predictor_for(protocol: LeaveOut, *, progress: Progress) -> Predictor:
    """Return a predictor whose calibration follows ``protocol``."""
    if protocol is LeaveOut.NONE:
        return ShippedPredictor(progress=progress)
    return HeldOutPredictor(protocol, progress=progress)


_Fraction = Annotated[float, Meta(ge=0.0)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class ErrorBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one group of rows; all figures are fractions, 0.12 for 12 %.

    Args:
        by: Grouping and group: ``split:new-gpu``, ``source,phase:neusight,forward_backward``.
        leave_out: The protocol that it applies to; every protocol by default.
        median: Largest median error.
        mean: Largest mean error.
        p90: Largest 90th percentile of the error.
        coverage_low: Smallest share of rows that their 90 % interval must hold.
        coverage_high: Largest such share: intervals that always hold are too wide.
        right_device: Smallest share of pairs of devices ordered right.
        unpredicted: Largest share of rows without a prediction.
    """

    by: str
    leave_out: LeaveOut | None = None
    median: _Fraction | None = None
    mean: _Fraction | None = None
    p90: _Fraction | None = None
    coverage_low: _Share | None = None
    coverage_high: _Share | None = None
    right_device: _Share | None = None
    unpredicted: _Share | None = None


class _BudgetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    budget: tuple[ErrorBudget, ...]


def read_budgets(path: str | os.PathLike[str], *, protocol: LeaveOut) -> tuple[ErrorBudget, ...]:
    """Read the budgets for a protocol from a TOML file of ``[[budget]]`` tables.

    Args:
        path: The file.
        protocol: Protocol of the report to judge.

    Raises:
        BreakevenError: If the file cannot be read, is no such file, or has no budget for the
            protocol.
    """
    path = Path(path)
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _BudgetFile)
    except OSError as error:
        raise BreakevenError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BreakevenError(
            f"{path} is no file of budgets: {error}",
            hint='a budget is, for example: [[budget]] by = "split:new-gpu" median = 0.12',
        ) from error
    for budget in found.budget:
        by, colon, group = budget.by.partition(":")
        if not (colon and group and by in GROUPINGS):
            raise BreakevenError(
                f"{path}: by = “{budget.by}” names no group",
                hint=f"it is GROUPING:GROUP, with a grouping of: {' '.join(GROUPINGS)}",
            )
    budgets = tuple(budget for budget in found.budget if budget.leave_out in (None, protocol))
    if not budgets:
        raise BreakevenError(f"{path}: no budget is about --leave-out {protocol}")
    return budgets


def exceeded_budgets(report: AccuracyReport, budgets: Sequence[ErrorBudget]) -> tuple[str, ...]:
    """Return one sentence for each limit that the report exceeds.

    A group without rows, or without the limited figure, exceeds its budget: an unchecked limit
    counts as broken.
    """
    breaches: list[str] = []
    if budgets and report.unread:
        breaches.append(f"{len(report.unread)} rows could not be read")
    for budget in budgets:
        by, _, group = budget.by.partition(":")
        summary = report.summary[by].get(group)
        if summary is None:
            breaches.append(f"{budget.by}: there are no such rows")
            continue
        breaches += [f"{budget.by}: {breach}" for breach in _breaches(budget, summary)]
    return tuple(breaches)


def _breaches(budget: ErrorBudget, summary: AccuracySummary) -> Iterator[str]:
    unpredicted_fraction = summary.num_unpredicted / summary.num_rows
    at_most = (
        ("median error", summary.median_error_fraction, budget.median),
        ("mean error", summary.mean_error_fraction, budget.mean),
        ("P90 of the error", summary.p90_error_fraction, budget.p90),
        ("coverage", summary.coverage_fraction, budget.coverage_high),
        ("share without a prediction", unpredicted_fraction, budget.unpredicted),
    )
    at_least = (
        ("coverage", summary.coverage_fraction, budget.coverage_low),
        ("right device", summary.right_device_fraction, budget.right_device),
    )
    for name, value, limit in at_most:
        if limit is not None and (value is None or value > limit):
            yield f"{name} {_percent(value)}, at most {_percent(limit)} allowed"
    for name, value, limit in at_least:
        if limit is not None and (value is None or value < limit):
            yield f"{name} {_percent(value)}, at least {_percent(limit)} wanted"


def _percent(fraction: float | None) -> str:
    # Use one more digit than reports, or a near miss would read "12 %, at most 12 %".
    return "unknown" if fraction is None else f"{format_digits(100 * fraction, 4)} %"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the errors, and judge them by the budgets; 1 if one is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.validate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "tables", metavar="TABLE.csv", type=Path, nargs="+", help="as for `breakeven validate`"
    )
    parser.add_argument(
        "--leave-out",
        choices=list(map(str, LeaveOut)),
        default="none",
        help="what the calibration must not have seen of a row (default: none, the calibration "
        "that ships)",
    )
    parser.add_argument(
        "--only", metavar="KEY=VALUE", action="append", default=[], help="count only these rows"
    )
    parser.add_argument("--budget", metavar="FILE.toml", type=Path, help="limits of groups of rows")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write JSON to FILE")
    parser.add_argument("--force", action="store_true", help="let -o replace FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    args = parser.parse_args(argv)
    protocol = LeaveOut(args.leave_out)
    console = CommandConsole(stderr=True)
    try:
        if args.output is not None:
            ensure_writable(args.output, force=args.force)
        budgets = () if args.budget is None else read_budgets(args.budget, protocol=protocol)
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            report = validate_table(
                *args.tables,
                predictor=predictor_for(protocol, progress=progress),
                protocol=protocol,
                only=RowFilter.parse(args.only) if args.only else None,
                progress=progress,
            )
        show(report, CommandConsole())
        if args.output is not None:
            write_document(args.output, to_json(report), force=args.force)
        if report.overall.num_unpredicted == report.overall.num_rows:
            raise BreakevenError("no row could be predicted")
    except BreakevenError as error:
        sys.stderr.write(f"error: {error.sentence}\n")
        return error.exit_code
    breaches = exceeded_budgets(report, budgets)
    for breach in breaches:
        console.print(f"over budget: {printable(breach)}", soft_wrap=True, markup=False)
    if budgets and not breaches:
        kept = "1 budget" if len(budgets) == 1 else f"all {len(budgets)} budgets"
        console.print(f"within {kept} of {printable(str(args.budget))}", soft_wrap=True)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
