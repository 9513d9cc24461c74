"""A cell of a table of figures, in the unit that a person would choose."""

from __future__ import annotations

from typing import assert_never

from breakeven.report.text import (
    duration_with_interval,
    printable,
    ratio_alone,
    ratio_with_interval,
)
from breakeven.timing import Estimate
from breakeven.units import (
    format_bytes,
    format_count,
    format_digits,
    format_duration,
    format_percent,
)
from breakeven.verdict import Cell, ColumnKind


def cell_text(cell: Cell, kind: ColumnKind) -> str:
    """Return a cell in the unit that a person would choose; an estimate with its interval."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell, 300)
    if isinstance(cell, Estimate):
        return _estimate_text(cell, kind)
    return _figure_text(cell, kind)


def _estimate_text(estimate: Estimate, kind: ColumnKind) -> str:
    value, low, high = estimate.value_ns, estimate.low_ns, estimate.high_ns
    if kind is ColumnKind.TIME_NS:
        return duration_with_interval(value, low, high)
    if kind is ColumnKind.RATIO:
        return ratio_with_interval(value, low, high)
    ends = f"{_figure_text(low, kind)}–{_figure_text(high, kind)}"
    return f"{_figure_text(value, kind)} ({ends})"


def _figure_text(figure: float, kind: ColumnKind) -> str:
    match kind:
        case ColumnKind.TIME_NS:
            return format_duration(figure)
        case ColumnKind.RATIO:
            return ratio_alone(figure)
        case ColumnKind.FRACTION:
            return format_percent(figure)
        case ColumnKind.BYTES:
            return format_bytes(figure)
        case ColumnKind.PER_SECOND:
            return f"{format_count(figure)}/s"
        case ColumnKind.COUNT:
            return f"{figure:,}" if isinstance(figure, int) else format_count(figure)
        case ColumnKind.TEXT:
            return format_digits(figure)
        case _:
            assert_never(kind)
