"""What a system finds: tables, and whether its figures agree with those that were published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from breakeven.errors import Caveat
from breakeven.timing import Estimate
from breakeven.units import format_digits
from breakeven.verdict import (
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    HostSummary,
    RowSource,
    SweepReport,
    SystemTable,
    TableColumn,
    TableRow,
)

_REACHES_INTO = "Outside of the band, but its interval reaches into it. "
_REACHES_BEYOND = "Within the band, but its interval reaches beyond it. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What running a system came to.

    Args:
        host: The machine that feeds the devices.
        tables: Figures side by side.
        claims: What was claimed of it.
        sweeps: Curves.
        caveats: Reasons to trust all of its figures less.
    """

    host: HostSummary
    tables: tuple[SystemTable, ...]
    claims: tuple[Claim, ...]
    sweeps: tuple[SweepReport, ...] = ()
    caveats: tuple[Caveat, ...] = ()


def rows(source: RowSource, cells: Iterable[Iterable[Cell]]) -> tuple[TableRow, ...]:
    """Return rows whose figures come from one source."""
    return tuple(TableRow(source=source, cells=tuple(row)) for row in cells)


def table(
    title: str, columns: Mapping[str, ColumnKind], rows: Iterable[TableRow], note: str = ""
) -> SystemTable:
    """Return a table.

    Args:
        title: What its figures show.
        columns: What the numbers of each column are, by its heading.
        rows: Published ones above ours.
        note: What a reader must know of them.
    """
    return SystemTable(
        title=title,
        columns=tuple(TableColumn(name=name, kind=kind) for name, kind in columns.items()),
        rows=tuple(rows),
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Figures that count as agreeing with a published one.

    Args:
        low: The smallest.
        high: The largest.
    """

    low: float
    high: float

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a figure agrees, and what its interval takes from that.

    Args:
        outcome: By where the figure lies.
        remark: Begins the reason of the claim, with a space behind it; empty where the whole
            interval lies as the figure does.
    """

    outcome: ClaimOutcome
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as long one step takes as another, with its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        low, value, high = (
            format_digits(figure, 2) for figure in (self.low, self.value, self.high)
        )
        return f"{value}× ({low}–{high}×)"


def ratio_of(slower: Estimate, faster: Estimate) -> Ratio:
    """Return how many times as long one step takes as another.

    Their errors are taken to be independent, so their distances on a logarithmic scale add in
    squares; of two predictions for one GPU and host they are partly the same, and the interval is
    wider than it had to be.
    """
    value = slower.value_ns / faster.value_ns
    below = (slower.value_ns / slower.low_ns, faster.high_ns / faster.value_ns)
    above = (slower.high_ns / slower.value_ns, faster.value_ns / faster.low_ns)
    return Ratio(
        value=value,
        low=value / math.exp(math.hypot(*map(math.log, below))),
        high=value * math.exp(math.hypot(*map(math.log, above))),
    )


def judge(value: float, low: float, high: float | None, band: Band) -> Judgement:
    """Return whether a figure agrees with a published one.

    It agrees where it lies in the band, with a remark where its interval leaves the band, and
    disagrees where all of its interval lies outside; between these the interval is too wide to say.

    Args:
        value: Ours.
        low: Lower end of its 90 % interval.
        high: Upper end; None where there is none.
        band: Figures that agree.
    """
    highest = math.inf if high is None else high
    if value in band:
        is_within = low in band and highest in band
        return Judgement(outcome=ClaimOutcome.AGREES, remark="" if is_within else _REACHES_BEYOND)
    if low <= band.high and highest >= band.low:
        return Judgement(outcome=ClaimOutcome.OPEN, remark=_REACHES_INTO)
    return Judgement(outcome=ClaimOutcome.DISAGREES)


def judged_claim(
    ratio: Ratio, band: Band, *, claim: str, published: str, ours: str, because: str
) -> Claim:
    """Return a claim that holds where a ratio lies in its band.

    Args:
        ratio: Ours.
        band: Ratios that agree with the published one.
        claim: The statement.
        published: The published figure.
        ours: The figure found here.
        because: What to know of it; what its interval takes from it stands before.
    """
    judged = judge(ratio.value, ratio.low, ratio.high, band)
    return Claim(
        claim=claim,
        published=published,
        ours=ours,
        outcome=judged.outcome,
        because=judged.remark + because,
    )
