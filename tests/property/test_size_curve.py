from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from breakeven.timing import Estimate, Source
from breakeven.verdict import SizeCurve

_times = st.floats(1e3, 1e9)
_spreads = st.floats(1, 2)
_sizes = st.integers(1, 1 << 20)


@st.composite
def known(draw: st.DrawFn) -> dict[int, Estimate]:
    sizes = draw(st.lists(_sizes, min_size=1, max_size=6, unique=True))
    found: dict[int, Estimate] = {}
    for size in sizes:
        time, spread = draw(_times), draw(_spreads)
        found[size] = Estimate(
            value_ns=time, low_ns=time / spread, high_ns=time * spread, source=Source.MEASURED
        )
    return found


@st.composite
def never_falling(draw: st.DrawFn) -> dict[int, Estimate]:
    found = draw(known())
    return dict(zip(sorted(found), sorted(found.values(), key=_value), strict=True))


def _value(estimate: Estimate) -> float:
    return estimate.value_ns


@given(known(), _sizes)
def test_only_measured_sizes_are_called_measured(times: dict[int, Estimate], size: int) -> None:
    found = SizeCurve(times).at(size)
    assert (found.source is Source.MEASURED) is (size in times)
    assert 0 < found.low_ns <= found.value_ns <= found.high_ns < math.inf


@given(never_falling(), _sizes, _sizes)
def test_time_never_falls_with_the_size(times: dict[int, Estimate], one: int, other: int) -> None:
    curve = SizeCurve(times)
    smaller, larger = sorted((one, other))
    assert curve.at(smaller).value_ns <= curve.at(larger).value_ns * (1 + 1e-9)


@given(known(), _sizes)
def test_time_grows_no_faster_than_the_size_beyond(times: dict[int, Estimate], size: int) -> None:
    curve = SizeCurve(times)
    last = max(times)
    if size > last and len(times) > 1:
        highest = max(time.value_ns for time in times.values())
        assert curve.at(size).value_ns <= highest * size / last * (1 + 1e-9)


@given(known(), _sizes, st.floats(0.01, 100))
def test_a_slower_machine_has_the_same_curve(
    times: dict[int, Estimate], size: int, factor: float
) -> None:
    slower = {
        each: Estimate(
            value_ns=time.value_ns * factor,
            low_ns=time.low_ns * factor,
            high_ns=time.high_ns * factor,
            source=time.source,
        )
        for each, time in times.items()
    }
    before, after = SizeCurve(times).at(size), SizeCurve(slower).at(size)
    assert math.isclose(after.value_ns, before.value_ns * factor, rel_tol=1e-6)
    assert math.isclose(after.low_ns, before.low_ns * factor, rel_tol=1e-6)
    assert math.isclose(after.high_ns, before.high_ns * factor, rel_tol=1e-6)
