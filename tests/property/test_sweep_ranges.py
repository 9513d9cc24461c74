from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given

from breakeven.errors import UsageError
from breakeven.studies import parse_axis


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(2, 9))
def test_doubling_ranges_rise_by_the_factor_from_end_to_end(
    start: int, more: int, factor: int
) -> None:
    end = start + more
    values = parse_axis(f"n={start}..{end}*{factor}").values
    assert values[0] == start
    assert values[-1] == end
    assert all(b == a * factor for a, b in itertools.pairwise(values[:-1]))
    assert all(b > a for a, b in itertools.pairwise(values))


@given(st.integers(-1_000, 1_000), st.integers(1, 50), st.integers(0, 200))
def test_linear_ranges_are_those_of_python_with_the_end(start: int, step: int, num: int) -> None:
    end = start + step * num
    values = parse_axis(f"n={start}..{end}+{step}").values
    assert values == tuple(range(start, end + 1, step))


@given(st.text(max_size=30))
def test_any_text_is_an_axis_or_refused(text: str) -> None:
    for candidate in (text, f"n={text}"):
        try:
            axis = parse_axis(candidate)
        except UsageError:
            continue
        assert len(set(axis.values)) == len(axis.values) > 0
