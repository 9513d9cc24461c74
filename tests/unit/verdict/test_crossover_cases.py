from __future__ import annotations

import math
import re

import pytest
from msgspec.structs import replace

from breakeven.timing import Source
from breakeven.verdict import (
    Crossover,
    Curve,
    CurvePoint,
    DeviceKind,
    NoCrossover,
    find_crossover,
)


def curve(
    kind: DeviceKind, times: dict[int, float], spread: float = 1.0, axis: str = "batch_size"
) -> Curve:
    return Curve(
        device=kind.value.upper(),
        kind=kind,
        axis=axis,
        points=tuple(
            CurvePoint(
                size=size,
                step_ns=time,
                low_ns=time / spread,
                high_ns=time * spread,
                source=Source.PREDICTED,
            )
            for size, time in times.items()
        ),
    )


def cpu(times: dict[int, float], spread: float = 1.0) -> Curve:
    return curve(DeviceKind.CPU, times, spread)


def gpu(times: dict[int, float], spread: float = 1.0) -> Curve:
    return curve(DeviceKind.GPU, times, spread)


SIZES = (1, 4, 16, 64, 256)


def linear_cpu(spread: float = 1.0) -> Curve:
    return cpu({size: 10.0 * size for size in SIZES}, spread)


def flat_gpu(time: float, spread: float = 1.0) -> Curve:
    return gpu(dict.fromkeys(SIZES, time), spread)


def test_crossover_between_two_points_is_interpolated() -> None:
    # The CPU takes 10 per sample, a straight line in logarithms: 10 x 8 is the GPU's 80.
    found = find_crossover(linear_cpu(), flat_gpu(80))

    # At 8 they tie, so 9 is the smallest size at which the GPU wins.
    assert found == Crossover(
        axis="batch_size", device="GPU", value=9, low=9, high=9, searched=(1, 256)
    )


def test_interval_is_where_the_ratio_may_cross() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(85, spread=2.0))

    assert isinstance(found, Crossover)
    assert (found.low, found.value, found.high) == (5, 9, 18)  # beyond 4.25, 8.5, 17


def test_independent_intervals_add_in_squares() -> None:
    found = find_crossover(linear_cpu(spread=2.0), flat_gpu(85, spread=2.0))
    spread = math.exp(math.hypot(math.log(2), math.log(2)))

    assert isinstance(found, Crossover)
    assert (found.low, found.high) == (math.floor(8.5 / spread) + 1, math.floor(8.5 * spread) + 1)


def test_upper_end_may_lie_beyond_what_was_searched() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(1000, spread=4.0))

    assert isinstance(found, Crossover)
    assert found.high is None
    assert found.low == 26


def test_lower_end_may_be_the_smallest_size() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(20, spread=4.0))

    assert isinstance(found, Crossover)
    assert (found.low, found.value) == (1, 3)


def test_a_win_counts_only_if_it_lasts() -> None:
    times = dict(zip(SIZES, (5.0, 200.0, 80.0, 80.0, 80.0), strict=True))  # wins at 1, loses at 4
    found = find_crossover(linear_cpu(), gpu(times))

    assert isinstance(found, Crossover)
    assert 4 < found.value <= 16


def test_a_dip_within_noise_between_clear_wins_is_ignored() -> None:
    times = dict(zip(SIZES, (80.0, 80.0, 80.0, 700.0, 80.0), strict=True))  # 700 against 640
    found = find_crossover(linear_cpu(), gpu(times, spread=1.5))

    assert isinstance(found, Crossover)
    assert found.value == 9
    assert found.high is not None
    assert found.high > 64  # but it is not certain before


def test_a_clear_dip_is_not_noise() -> None:
    times = dict(zip(SIZES, (80.0, 80.0, 80.0, 700.0, 80.0), strict=True))
    found = find_crossover(linear_cpu(), gpu(times, spread=1.05))

    assert isinstance(found, Crossover)
    assert found.value > 64


def test_a_dip_beside_an_unclear_win_is_not_noise() -> None:
    times = dict(zip(SIZES, (80.0, 80.0, 140.0, 700.0, 80.0), strict=True))  # 140 against 160
    found = find_crossover(linear_cpu(), gpu(times, spread=1.5))

    assert isinstance(found, Crossover)
    assert found.value > 64


def test_a_dip_beside_an_unclear_win_between_clear_ones_is_ignored() -> None:
    times = dict(zip(SIZES, (2.0, 2.0, 140.0, 700.0, 80.0), strict=True))
    found = find_crossover(linear_cpu(), gpu(times, spread=1.5))

    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.GPU


def test_gpu_faster_everywhere() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(1))

    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.GPU
    assert found.searched == (1, 256)
    # There is no batch below 1.
    assert found.none_because == "GPU is faster at every batch size from 1 to 256."


def test_gpu_faster_at_all_sizes_searched() -> None:
    found = find_crossover(cpu({8: 80.0, 16: 160.0}), gpu({8: 1.0, 16: 1.0}))

    assert isinstance(found, NoCrossover)
    assert found.none_because == (
        "GPU is faster at every batch size from 8 to 16; the crossover, if there is one, is below."
    )


def test_cpu_faster_everywhere() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(1e6))

    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.CPU
    assert found.none_because == (
        "GPU is not faster than CPU at any batch size from 1 to 256, and clearly so."
    )


def test_cpu_faster_everywhere_but_not_clearly() -> None:
    found = find_crossover(linear_cpu(), flat_gpu(2700, spread=1.5))

    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.CPU
    assert "measure" in found.none_because


def test_gpu_wins_everywhere_but_not_clearly_so() -> None:
    # 16 against 10, each within a factor of 2: beyond the interval at 64 and 256 only.
    times = dict.fromkeys(SIZES, 10.0)
    near = dict(zip(SIZES, (16.0, 16.0, 16.0, 640.0, 640.0), strict=True))
    found = find_crossover(cpu(near, spread=2.0), gpu(times, spread=2.0))
    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.GPU
    assert re.fullmatch(
        r"GPU is faster at every batch size from 1 to 256, clearly so from \d+ on\.",
        found.none_because,
    )

    found = find_crossover(cpu(dict.fromkeys(SIZES, 16.0), spread=2.0), gpu(times, spread=2.0))
    assert isinstance(found, NoCrossover)
    assert found.none_because.endswith("though not everywhere by more than the intervals.")


def test_ties_everywhere_are_no_win() -> None:
    times = dict.fromkeys(SIZES, 10.0)
    found = find_crossover(cpu(times), gpu(times))

    assert isinstance(found, NoCrossover)
    assert found.faster is DeviceKind.CPU


def test_gpu_wins_but_not_at_the_end() -> None:
    times = dict(zip(SIZES, (80.0, 80.0, 80.0, 80.0, 1e5), strict=True))
    found = find_crossover(linear_cpu(), gpu(times))

    assert isinstance(found, NoCrossover)
    assert found.faster is None
    assert found.none_because == (
        "GPU is faster at 16 but not at 256, the largest batch size searched; check a larger one."
    )


@pytest.mark.parametrize("times", [{}, {4: 1.0}, {1000: 1.0, 2000: 1.0}])
def test_too_little_in_common_is_said(times: dict[int, float]) -> None:
    found = find_crossover(linear_cpu(), gpu(times))

    assert isinstance(found, NoCrossover)
    assert found.faster is None
    assert found.searched is None


def test_curves_with_other_sizes_meet_in_between() -> None:
    found = find_crossover(cpu({1: 10.0, 256: 2560.0}), gpu({2: 80.0, 128: 80.0}))

    assert isinstance(found, Crossover)
    assert found.searched == (2, 128)
    assert found.value == 9


def test_sizes_between_measured_ones_are_predicted_with_their_own_interval() -> None:
    # Measured to the nanosecond, but not at 8: what is known of 4 and 16 leaves some doubt there.
    known = linear_cpu()
    points = tuple(replace(point, source=Source.MEASURED) for point in known.points)
    found = find_crossover(replace(known, points=points), flat_gpu(85))

    assert isinstance(found, Crossover)
    assert found.value == 9
    assert found.high is not None
    assert 4 < found.low < 9 < found.high < 16


def test_a_fixed_time_between_measured_sizes_is_no_power_of_the_size() -> None:
    # 100 + 10 per sample at 1 and 64 is 300 at 20; a straight line in logarithms is there at 26.
    ends = cpu({1: 110.0, 64: 740.0})
    points = tuple(replace(point, source=Source.MEASURED) for point in ends.points)
    found = find_crossover(replace(ends, points=points), gpu({1: 300.0, 16: 300.0, 64: 300.0}))

    assert isinstance(found, Crossover)
    assert found.value == pytest.approx(21, abs=1)


def test_order_of_points_does_not_matter() -> None:
    times = {size: 10.0 * size for size in reversed(SIZES)}
    assert find_crossover(cpu(times), flat_gpu(85)) == find_crossover(linear_cpu(), flat_gpu(85))


def test_misuse_is_told() -> None:
    with pytest.raises(ValueError, match="along"):
        find_crossover(linear_cpu(), curve(DeviceKind.GPU, {1: 1.0}, axis="width"))
    with pytest.raises(ValueError, match="positive and distinct"):
        find_crossover(cpu({0: 1.0, 4: 2.0}), flat_gpu(1))
