"""Texts and figures that several reports share."""

from __future__ import annotations

import pytest

from breakeven.report import printable
from breakeven.report.text import (
    duration_with_interval,
    listed,
    place_text,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.units import format_time


@pytest.mark.parametrize(
    ("value_ns", "low_ns", "high_ns", "expected"),
    [
        (2.84e6, 2.2e6, 3.4e6, "2.8 ms (2.2–3.4)"),
        (2.84e6, 2.83e6, 2.85e6, "2.84 ms (2.83–2.85)"),
        (9.84e9, 9.5e9, 10.2e9, "9.8 s (9.5–10.2)"),
        (612e3, 590e3, 641e3, "610 µs (590–640)"),
        (960e3, 700e3, 1.35e6, "960 µs (700 µs–1.35 ms)"),
        (5e6, 5e6, 5e6, "5 ms"),
        (5.96e6, 3.04e6, 9.41e6, "6.0 ms (3.0–9.4)"),
        (233e6, 20e6, 3_740e6, "230 ms (20 ms–3.74 s)"),
    ],
)
def test_digits_follow_the_interval(
    value_ns: float, low_ns: float, high_ns: float, expected: str
) -> None:
    assert duration_with_interval(value_ns, low_ns, high_ns) == expected


def test_ratios_as_text() -> None:
    assert ratio_with_interval(14.2, 11.0, 17.3) == "14× (11–17×)"
    assert ratio_with_interval(1.04, 1.02, 1.06) == "1.04× (1.02–1.06×)"
    assert ratio_with_interval(3.0, 3.0, 3.0) == "3×"
    assert ratio_with_interval(1.5, 1.04, 2.1) == "1.5× (1.0–2.1×)"
    assert ratio_with_interval(69.1, 5.2, 1_136.0) == "69× (5–1,140×)"
    assert ratio_alone(1.0) == "1×"
    assert ratio_alone(1.042) == "1.04×"
    assert ratio_alone(0.432) == "0.43×"


def test_printable_and_shorten() -> None:
    assert printable("a\nb\tc") == "a b c"
    assert printable("a\x1b]0;t\x07") == "a\\x1b]0;t\\x07"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abc", 3) == "abc"
    assert len(printable("z" * 10_000)) == 300


def test_a_list_names_so_many_and_counts_the_rest() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


MS, S = 1e6, 1e9

MIN, H, DAY = 60 * S, 3_600 * S, 86_400 * S


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0.4 * S, "400 ms"),
        (59.4 * S, "59 s"),
        (59.6 * S, "1 min"),
        (61 * S, "1 min 1 s"),
        (9 * MIN + 59.7 * S, "10 min"),
        (42 * MIN + 20 * S, "42 min"),
        (59 * MIN + 59.9 * S, "1 h"),
        (3 * H + 10 * MIN, "3 h 10 min"),
        (23 * H + 59.9 * MIN, "1 d"),
        (30 * DAY, "30 d"),
        (2 * DAY + 4 * H, "2 d 4 h"),
    ],
)
def test_long_times_are_said_as_people_do(duration_ns: float, text: str) -> None:
    assert format_time(duration_ns) == text


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/tmp/runs/7f3a/train.py", "train.py:12"),
        ("C:\\work\\train.py", "train.py:12"),
        ("examples/train.py", "examples/train.py:12"),
        (None, ""),
    ],
)
def test_of_an_absolute_path_the_name_is_kept(file: str | None, shown: str) -> None:
    assert place_text(file, 12) == shown
