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
    parse_amount,
    parse_speed,
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


@pytest.mark.parametrize(
    ("text", "time_ns", "per"),
    [
        ("340 it/s", 1e9 / 340, "step"),
        ("1,140 its/s", 1e9 / 1_140, "step"),
        ("2.5 s/it", 2.5e9, "step"),
        ("12 ms", 12e6, "step"),
        ("12ms", 12e6, "step"),
        ("0.5 S", 5e8, "step"),
        (".5 s", 5e8, "step"),
        ("850 us", 850e3, "step"),
        ("850 µs", 850e3, "step"),
        ("850 μs", 850e3, "step"),
        ("3 steps/s", 1e9 / 3, "step"),
        ("45 s/epoch", 45e9, "epoch"),
        ("1.5 min/epoch", 90e9, "epoch"),
        ("2 epochs/min", 30e9, "epoch"),
        ("1000 samples/s", 1e6, "sample"),
    ],
)
def test_a_speed_is_a_time_of_what_it_counts(text: str, time_ns: float, per: str) -> None:
    found = parse_speed(text)
    assert found is not None
    assert found[0] == pytest.approx(time_ns)
    assert found[1] == per


@pytest.mark.parametrize(
    "text",
    ["", "340", "it/s", "340 it", "340 it/it", "340 s/s", "-3 ms", "0 ms", "12,5 ms", "nan ms",
     "1e9 ms", "340 / s", "3 apples/s", "9" * 400 + " s", "1 2 ms"],
)  # fmt: skip
def test_what_has_no_amount_or_no_known_unit_is_no_speed(text: str) -> None:
    assert parse_speed(text) is None


@pytest.mark.parametrize(
    ("text", "amount", "quantity"),
    [
        ("5 ms", 5e6, "ns"),
        ("2us", 2_000, "ns"),
        ("2 µs", 2_000, "ns"),
        ("3 H", 3 * 3_600e9, "ns"),
        ("1,500 MB", 1.5e9, "bytes"),
        ("14 GB", 14e9, "bytes"),
        ("10 %", 0.1, "fraction"),
        (".5%", 0.005, "fraction"),
        ("0", 0, "count"),
        ("3", 3, "count"),
    ],
)
def test_amounts_have_the_unit_of_their_quantity(text: str, amount: float, quantity: str) -> None:
    assert parse_amount(text) == (pytest.approx(amount), quantity)


@pytest.mark.parametrize("text", ["", "ms", "5 apples", "-5 ms", "1,5 ms", "5 ms on", "nan", "1e3"])
def test_what_has_no_number_or_no_known_unit_is_no_amount(text: str) -> None:
    assert parse_amount(text) is None
