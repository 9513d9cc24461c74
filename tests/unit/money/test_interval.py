"""Figures with 90 % intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.money import Interval

FIGURES = st.floats(1e-3, 1e9)
RATIOS = st.floats(1.0, 10.0)
QUANTILES = st.floats(0.001, 0.999)


@given(FIGURES, RATIOS, RATIOS)
def test_the_ends_are_the_5_and_95_percent_quantiles(
    value: float, below: float, above: float
) -> None:
    interval = Interval(value=value, low=value / below, high=value * above)
    assert interval.at(0.05) == pytest.approx(interval.low)
    assert interval.at(0.5) == pytest.approx(value)
    assert interval.at(0.95) == pytest.approx(interval.high)


@given(FIGURES, RATIOS, RATIOS, QUANTILES, QUANTILES)
def test_a_higher_quantile_is_no_smaller(
    value: float, below: float, above: float, one: float, other: float
) -> None:
    interval = Interval(value=value, low=value / below, high=value * above)
    first, second = sorted((one, other))
    assert interval.at(first) <= interval.at(second) * (1 + 1e-12)


def test_a_quantile_of_a_log_normal_figure() -> None:
    # One standard deviation, 84.1 %, is 1 / 1.645 of the way to the end, in logarithms.
    assert Interval(value=1.0, low=0.1, high=10.0).at(0.8413447) == pytest.approx(
        10 ** (1 / 1.6448536), rel=1e-5
    )
