"""The errors that a table's owner accepts, and where a report exceeds them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from breakeven.errors import BreakevenError
from breakeven.units import format_digits
from breakeven.validate.summary import GROUPINGS
from breakeven.verdict import AccuracyReport, AccuracySummary, LeaveOut

_Fraction = Annotated[float, Meta(ge=0.0)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class ErrorBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one group of rows; all figures are fractions, 0.12 for 12 %.

    Args:
        by: Grouping and group: ``split:new-gpu``, ``source,phase:neusight,forward_backward``.
        leave_out: The protocol that it is about; every protocol by default.
        median: Largest median error.
        mean: Largest mean error.
        p90: Largest 90th percentile of the error.
        coverage_low: Smallest share of rows that their 90 % interval must hold.
        coverage_high: Largest such share: intervals that always hold say too little.
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
    """Return the budgets of a TOML file of ``[[budget]]`` tables that are about a protocol.

    Args:
        path: The file.
        protocol: Of the report that will be judged.

    Raises:
        BreakevenError: The file cannot be read, is no such file, or says nothing about the
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
    """Return one sentence for each limit that the report does not keep.

    A group without rows, or without the figure that is limited, does not keep its budget: what
    was not looked at is not fine.
    """
    breaches: list[str] = []
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
    # A digit more than reports show, or a budget missed by little would read "12 %, at most 12 %".
    return "unknown" if fraction is None else f"{format_digits(100 * fraction, 4)} %"
