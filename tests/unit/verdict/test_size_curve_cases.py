from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from breakeven.timing import Estimate, Source
from breakeven.verdict import SizeCurve, SizeSpread

# Nothing but what the lines themselves say.
NONE = SizeSpread(repeat=1e-9, between=(0.0, 0.0), larger=(0.0, 0.0), smaller=(0.0, 0.0))


def measured(value: float, spread: float = 1.0) -> Estimate:
    return Estimate(
        value_ns=value, low_ns=value / spread, high_ns=value * spread, source=Source.MEASURED
    )


def curve(
    times: dict[int, float], spread: float = 1.0, trust: SizeSpread | None = None
) -> SizeCurve:
    return SizeCurve({size: measured(time, spread) for size, time in times.items()}, trust)


def line(size: int) -> float:
    return 100.0 + 10.0 * size


def width(estimate: Estimate) -> float:
    return math.log(estimate.high_ns / estimate.low_ns)


def test_measured_sizes_are_passed_on_as_they_are() -> None:
    times = {1: measured(110, 1.1), 4: measured(140, 1.2)}
    found = SizeCurve(times)
    assert found.at(1) is times[1]
    assert found.at(4) is times[4]
    assert found.at(2).source is Source.PREDICTED


def test_overhead_and_time_per_sample_are_found_between_and_beyond() -> None:
    found = curve({size: line(size) for size in (4, 16, 64)})
    for size in (1, 2, 5, 8, 32, 100, 256, 1_024):
        assert found.at(size).value_ns == pytest.approx(line(size))
        assert found.at(size).source is Source.PREDICTED


def test_time_that_grows_faster_than_the_size_is_a_power_of_it_between() -> None:
    # 16 times as long at 4 times the size: the square of it, 40, not the chord's 10 + 150 / 3.
    assert curve({1: 10.0, 4: 160.0}).at(2).value_ns == pytest.approx(40.0)


def test_time_that_grows_faster_than_the_size_grows_with_it_beyond() -> None:
    assert curve({1: 10.0, 4: 160.0}).at(16).value_ns == pytest.approx(640.0)
    # Of the time at 4, 95 % goes down with the size at most: 16 x (0.05 + 0.95 / 4).
    assert curve({4: 16.0, 16: 256.0}).at(1).value_ns == pytest.approx(4.6)


def test_time_that_does_not_grow_yet_is_taken_to_grow_a_little_beyond() -> None:
    found = curve({1: 100.0, 4: 100.0, 16: 100.0})
    assert found.at(2).value_ns == pytest.approx(100.0)
    # A tenth of the time at 16 is for samples: 10 + 90 at 16, 40 + 90 at 64.
    assert found.at(64).value_ns == pytest.approx(130.0)
    assert curve({4: 100.0, 16: 100.0}).at(1).value_ns == pytest.approx(100.0)


def test_times_that_fall_within_their_intervals_are_evened_out() -> None:
    found = curve({1: 100.0, 4: 64.0, 16: 1_000.0}, spread=1.5, trust=NONE)
    # Both are as sure as the other: the geometric mean of 100 and 64, and an interval with both.
    between = found.at(2)
    assert between.value_ns == pytest.approx(80.0)
    assert between.low_ns < 64.0 < 100.0 < between.high_ns
    assert found.at(1).value_ns == 100.0
    assert found.at(4).value_ns == 64.0
    # From the evened 80 at 4 to 1000 at 16; the power is below the chord.
    assert found.at(8).value_ns == pytest.approx(math.sqrt(80.0 * 1_000.0))


def test_times_that_fall_beyond_their_intervals_are_another_algorithms() -> None:
    found = curve({1: 100.0, 4: 64.0, 16: 1_000.0}, spread=1.1, trust=NONE)
    assert found.at(2).value_ns == pytest.approx(80.0)
    assert found.at(8).value_ns == pytest.approx(math.sqrt(64.0 * 1_000.0))


def test_surer_measurement_counts_for_more_where_times_fall() -> None:
    # Widths of 2 ln 4 and 2 ln 2 weigh as 1 to 4.
    times = {1: measured(100, 4.0), 4: measured(50, 2.0)}
    expected = math.exp((math.log(100) + 4 * math.log(50)) / 5)
    assert SizeCurve(times, NONE).at(2).value_ns == pytest.approx(expected)


def test_interval_between_is_that_of_the_measurements_and_what_lies_between() -> None:
    known = {1: 10.0, 4: 40.0}
    assert width(curve(known, trust=NONE).at(2)) == pytest.approx(0.0, abs=1e-8)
    # The measurements alone: a factor of 1.2 on either side.
    estimate = curve(known, spread=1.2, trust=NONE).at(2)
    assert (estimate.low_ns, estimate.high_ns) == pytest.approx((20 / 1.2, 20 * 1.2))
    # The distance alone: a factor of 2 from either size.
    trust = SizeSpread(repeat=1e-9, between=(0.2, 0.1), larger=(0.0, 0.0), smaller=(0.0, 0.0))
    estimate = curve(known, trust=trust).at(2)
    distance = math.sqrt(math.log(2))
    assert math.log(20 / estimate.low_ns) == pytest.approx(0.2 * distance)
    assert math.log(estimate.high_ns / 20) == pytest.approx(0.1 * distance)


def test_interval_between_ends_at_the_measured_times_on_both_sides() -> None:
    wide = SizeSpread(repeat=1e-9, between=(5.0, 5.0), larger=(0.0, 0.0), smaller=(0.0, 0.0))
    estimate = curve({1: 10.0, 4: 40.0}, trust=wide).at(2)
    assert (estimate.low_ns, estimate.high_ns) == pytest.approx((10.0, 40.0))


@pytest.mark.parametrize("times", [{16: 1_000.0}, {16: 1_000.0, 64: 3_000.0}])
def test_interval_widens_with_the_distance_beyond(times: dict[int, float]) -> None:
    found = curve(times, spread=1.05)
    for sizes in ((16, 8, 4, 2, 1), (max(times), 128, 256, 1_024, 16_384)):
        widths = [width(found.at(size)) for size in sizes]
        assert widths == sorted(widths)
        assert widths[0] < widths[1] < widths[-1]


def test_one_measured_size_leaves_everything_from_overhead_to_proportion_open() -> None:
    found = curve({16: 160.0}, trust=NONE)
    above, below = found.at(64), found.at(4)
    # As long as at 16, or 4 times as long.
    assert (above.low_ns, above.high_ns) == pytest.approx((160.0, 640.0))
    assert above.value_ns == pytest.approx(160 * (1 + 0.7 * 3))
    # As long as at 16, or (nearly) a quarter of it.
    assert below.high_ns == pytest.approx(160.0)
    assert below.low_ns == pytest.approx(160 * (0.05 + 0.95 / 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SizeCurve({}),
        lambda: curve({0: 1.0}),
        lambda: curve({1: 0.0}),
        lambda: curve({1: 1.0}, spread=0.5),
        lambda: curve({1: 1.0}).at(0),
    ],
)
def test_misuse_is_told(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="size"):
        make()
