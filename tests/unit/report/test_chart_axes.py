"""Axes of charts, and the styles that tell series apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven.report.chart import (
    COLOURS,
    Scale,
    category_axis,
    size_axis,
    style_of,
    value_axis,
)


def axis_of(*values: float):
    return value_axis("n", values, str)


def test_values_that_span_much_are_on_a_logarithmic_axis() -> None:
    assert axis_of(1, 1_000).scale is Scale.LOG
    assert axis_of(2, 12).scale is Scale.LINEAR
    assert axis_of(0, 1_000).scale is Scale.LINEAR


def test_a_linear_axis_begins_at_zero_unless_its_values_are_far_from_it() -> None:
    assert axis_of(2, 12).low == 0
    far = axis_of(6_540, 6_660)
    assert 6_500 < far.low < far.high < 6_700


def test_each_of_few_sizes_is_a_tick_and_there_is_none_between() -> None:
    axis = size_axis("depth", [2, 3, 4, 7])
    assert [tick.value for tick in axis.ticks] == [2, 3, 4, 7]
    assert 1.5 < axis.low < 2
    assert 7 < axis.high < 7.5
    assert len(size_axis("n", range(100, 200)).ticks) <= 9
    assert size_axis("n", [5]).position(5) == 0.5
    assert size_axis("n", [1, 100]).scale is Scale.LOG


def test_doubling_sizes_are_written_as_they_are() -> None:
    ticks = axis_of(*(2.0**i for i in range(4, 17))).ticks
    assert [tick.value for tick in ticks] == [2.0**i for i in range(4, 17, 2)]


def test_a_logarithmic_axis_has_round_ticks() -> None:
    assert [tick.value for tick in axis_of(10, 70_000).ticks] == [10, 100, 1_000, 10_000]
    few_decades = [tick.value for tick in axis_of(400, 4_000).ticks]
    assert few_decades == pytest.approx([500, 1_000, 2_000])


def test_positions() -> None:
    axis = axis_of(1, 10_000)
    half = math.sqrt(axis.low * axis.high)
    assert axis.position(half) == pytest.approx(0.5)
    assert axis.position(0) == 0
    assert axis.position(1e9) == 1
    names = category_axis("device", ["a", "b"])
    assert [names.position(tick.value) for tick in names.ticks] == [0.25, 0.75]


@example([0.001, 0.0010000000000000002])
@given(st.lists(st.floats(min_value=1e-3, max_value=1e15), min_size=1, max_size=20))
def test_every_value_and_tick_is_within_the_axis(values: list[float]) -> None:
    axis = axis_of(*values)
    assert axis.low < axis.high
    ticks = [tick.value for tick in axis.ticks]
    assert ticks == sorted(set(ticks))
    for value in (*values, *ticks):
        assert axis.low <= value * (1 + 1e-12)
        assert value <= axis.high * (1 + 1e-12)
    assert len(ticks) <= 16


@pytest.mark.parametrize(
    "values", [(0, 5e-324), (5e-324, 1), (1, 1.7e308), (-5, 3), (0,), (1e308,)]
)
def test_absurd_values_make_an_axis_all_the_same(values: tuple[float, ...]) -> None:
    axis = axis_of(*values)
    assert axis.low < axis.high < math.inf
    assert all(0 <= axis.position(value) <= 1 for value in values)


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("number", range(len(COLOURS)))
def test_lines_stand_out_from_light_and_dark_paper(number: int) -> None:
    # WCAG 2.1, 1.4.11: graphics need a contrast of 3.
    light, dark = COLOURS[number]
    assert contrast(light, "#ffffff") >= 3
    assert contrast(dark, "#15181d") >= 3


def test_series_differ_without_colour_too() -> None:
    looks = [(style_of(i).dashes, style_of(i).path) for i in range(20)]
    assert len(set(looks)) == 20
    whole = {(style_of(i).colour, *looks[i % 20]) for i in range(7 * 20)}
    assert len(whole) == 7 * 20
