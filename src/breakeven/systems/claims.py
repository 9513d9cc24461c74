"""Whether a figure found here agrees with one that was published."""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.timing import Estimate
from breakeven.units import format_digits
from breakeven.verdict import ClaimOutcome

_REACHES_INTO = "Outside of the band, but its interval reaches into it. "
_REACHES_BEYOND = "Within the band, but its interval reaches beyond it. "


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
