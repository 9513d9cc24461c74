from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.units import (
    BYTES_PER_GIB,
    BYTES_PER_MIB,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_bytes,
    format_count,
    format_digits,
    format_duration,
    format_percent,
    format_ratio,
)


def test_the_scales_agree_with_each_other() -> None:
    assert NS_PER_S == 1_000 * NS_PER_MS == 1_000_000 * NS_PER_US
    assert BYTES_PER_GIB == 1_024 * BYTES_PER_MIB


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 3, "0"),
        (0.0, 1, "0"),
        (1.2345, 3, "1.23"),
        (12.345, 3, "12.3"),
        (123.45, 3, "123"),
        (1_234, 3, "1,230"),
        (1_234_567, 2, "1,200,000"),
        (999.6, 3, "1,000"),
        (0.012345, 2, "0.012"),
        (-12.345, 3, "-12.3"),
    ],
)
def test_digits_are_significant_and_never_an_exponent(value: float, digits: int, text: str) -> None:
    assert format_digits(value, digits) == text


@given(
    st.floats(min_value=1e-4, max_value=1e15),
    st.integers(min_value=1, max_value=6),
)
def test_digits_keep_the_value_up_to_rounding(value: float, digits: int) -> None:
    text = format_digits(value, digits)
    assert "e" not in text
    # n digits round by at most half a unit of the last one: 0.5 × 10^(1-n) of the value.
    shown = float(text.replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.5 * 10 ** (1 - digits) * (1 + 1e-9))


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (0.25, "0.25 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (999.4, "999 ns"),
        (999.6, "1 µs"),
        (1_000, "1 µs"),
        (1_240_000, "1.24 ms"),
        (999_900, "1 ms"),
        (999_400, "999 µs"),
        (61 * NS_PER_S, "61 s"),
        (3_600 * NS_PER_S, "3,600 s"),
        (-2_500, "-2.5 µs"),
    ],
)
def test_a_duration_is_in_the_unit_that_a_person_would_choose(
    duration_ns: float, text: str
) -> None:
    assert format_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (4_096, "4.1 kB"),
        (16e9, "16 GB"),
        (16 * BYTES_PER_GIB, "17.2 GB"),
        (1.5e12, "1.5 TB"),
        (3e15, "3,000 TB"),
    ],
)
def test_bytes_are_decimal(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (0.5, "0.5"), (12, "12"), (999, "999"), (12_345, "12.3k"), (25_557_032, "25.6M")],
)
def test_counts_have_a_prefix_from_a_thousand_on(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.412, "0.41×"),
        (1, "1×"),
        (3.24, "3.2×"),
        (41.6, "42×"),
        (120.4, "120×"),
        (1_234, "1,230×"),
    ],
)
def test_a_ratio_has_two_digits_below_a_hundred(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0 %"), (0.1234, "12 %"), (0.005, "0.5 %"), (1, "100 %")]
)
def test_a_fraction_is_shown_as_a_percentage(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text
