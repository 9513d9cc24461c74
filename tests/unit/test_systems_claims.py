"""Whether a figure counts as agreeing, and how uncertain a ratio is."""

from __future__ import annotations

import math

import pytest
from made_up_systems import estimate

from breakeven.systems._claims import Band, judge, ratio_of
from breakeven.verdict import ClaimOutcome

BAND = Band(low=1.5, high=3.0)


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome"),
    [
        (2.0, 1.0, 4.0, ClaimOutcome.AGREES),
        (1.5, 1.4, 1.6, ClaimOutcome.AGREES),  # the ends belong to the band
        (3.9, 2.9, 5.0, ClaimOutcome.OPEN),
        (1.2, 1.0, 1.6, ClaimOutcome.OPEN),
        (1.2, 1.0, None, ClaimOutcome.OPEN),  # the upper end is unknown
        (3.9, 3.1, 5.0, ClaimOutcome.DISAGREES),
        (1.2, 1.0, 1.4, ClaimOutcome.DISAGREES),
        (4.0, 3.5, None, ClaimOutcome.DISAGREES),
    ],
)
def test_a_figure_agrees_in_the_band_and_is_open_where_its_interval_reaches_in(
    value: float, low: float, high: float | None, outcome: ClaimOutcome
) -> None:
    assert judge(value, low, high, BAND) is outcome


def test_independent_errors_add_in_squares() -> None:
    ratio = ratio_of(estimate(6.0, spread=math.exp(0.3)), estimate(2.0, spread=math.exp(0.4)))
    assert ratio.value == pytest.approx(3.0)
    assert ratio.low == pytest.approx(3.0 / math.exp(0.5))
    assert ratio.high == pytest.approx(3.0 * math.exp(0.5))


def test_a_ratio_is_shown_with_its_interval() -> None:
    assert str(ratio_of(estimate(6.0, spread=2), estimate(2.0, spread=1))) == "3× (1.5–6×)"
