"""Whether a figure found here agrees with one that was published."""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.timing import Estimate
from breakeven.units import format_digits
from breakeven.verdict import ClaimOutcome

# Begins the reason of a claim that is open though there is a figure for it.
OPEN_BECAUSE = "Outside of the band, but its interval reaches into it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Figures that count as agreeing with a published one. Fixed before anything is predicted.

    Args:
        low: The smallest.
        high: The largest.
    """

    low: float
    high: float

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


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


def judge(value: float, low: float, high: float | None, band: Band) -> ClaimOutcome:
    """Return whether a figure agrees with a published one.

    It agrees where it lies in the band, and disagrees where all of its interval lies outside;
    between these the interval is too wide to say.

    Args:
        value: Ours.
        low: Lower end of its 90 % interval.
        high: Upper end; None where there is none.
        band: Figures that agree.
    """
    if value in band:
        return ClaimOutcome.AGREES
    reaches_band = low <= band.high and (high is None or high >= band.low)
    return ClaimOutcome.OPEN if reaches_band else ClaimOutcome.DISAGREES
