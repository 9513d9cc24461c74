from __future__ import annotations

import math

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


def at_sizes(*times: float) -> dict[int, float]:
    return dict(zip(SIZES, times, strict=True))


def test_crossover_between_two_points_is_interpolated() -> None:
    # The CPU takes 10 per sample, a straight line in logarithms: 10 x 8 is the GPU's 80.
    found = find_crossover(linear_cpu(), flat_gpu(80))

    # At 8 they tie, so 9 is the smallest size at which the GPU wins.
    assert found == Crossover(
        axis="batch_size", device="GPU", value=9, low=9, high=9, searched=(1, 256)
    )


SPREAD = math.exp(math.hypot(math.log(2), math.log(2)))


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "value", "high"),
    [
        (linear_cpu(), flat_gpu(85, spread=2.0), 5, 9, 18),  # beyond 4.25, 8.5, 17
        # Independent intervals add in squares.
        (
            linear_cpu(spread=2.0),
            flat_gpu(85, spread=2.0),
            math.floor(8.5 / SPREAD) + 1,
            9,
            math.floor(8.5 * SPREAD) + 1,
        ),
        # The upper end may lie beyond what was searched, and the lower one be the smallest size.
        (linear_cpu(), flat_gpu(1000, spread=4.0), 26, 101, None),
        (linear_cpu(), flat_gpu(20, spread=4.0), 1, 3, 9),
        # Curves with other sizes meet in between.
        (cpu({1: 10.0, 256: 2560.0}), gpu({2: 80.0, 128: 80.0}), 9, 9, 9),
    ],
)
def test_interval_is_where_the_ratio_may_cross(
    ours: Curve, theirs: Curve, low: int, value: int, high: int | None
) -> None:
    found = find_crossover(ours, theirs)
    assert isinstance(found, Crossover)
    assert (found.low, found.value, found.high) == (low, value, high)


@pytest.mark.parametrize(
    ("times", "spread", "least", "most"),
    [
        # It wins at 1 and loses at 4: only what lasts counts.
        ((5.0, 200.0, 80.0, 80.0, 80.0), 1.0, 5, 16),
        # A dip within noise, 700 against 640, between clear wins is ignored.
        ((80.0, 80.0, 80.0, 700.0, 80.0), 1.5, 9, 9),
        # A clear dip is no noise, nor one next to an unclear win, 140 against 160.
        ((80.0, 80.0, 80.0, 700.0, 80.0), 1.05, 65, 256),
        ((80.0, 80.0, 140.0, 700.0, 80.0), 1.5, 65, 256),
    ],
)
def test_a_dip_counts_unless_it_is_noise_between_clear_wins(
    times: tuple[float, ...], spread: float, least: int, most: int
) -> None:
    found = find_crossover(linear_cpu(), gpu(at_sizes(*times), spread=spread))
    assert isinstance(found, Crossover)
    assert least <= found.value <= most
    if most == 9:
        assert found.high is not None
        assert found.high > 64  # but it is not certain before


CPU, GPU = DeviceKind.CPU, DeviceKind.GPU
TENS = at_sizes(*(10.0,) * 5)
UNSURE = "though not everywhere by more than the intervals"


@pytest.mark.parametrize(
    ("ours", "theirs", "faster", "because"),
    [
        # There is no batch below 1.
        (linear_cpu(), flat_gpu(1), GPU, "GPU is faster at every batch size from 1 to 256."),
        (
            cpu({8: 80.0, 16: 160.0}),
            gpu({8: 1.0, 16: 1.0}),
            GPU,
            "GPU is faster at every batch size from 8 to 16; the crossover, if there is one, is "
            "below.",
        ),
        # A dip next to an unclear win, between clear ones, is ignored.
        (
            linear_cpu(),
            gpu(at_sizes(2.0, 2.0, 140.0, 700.0, 80.0), spread=1.5),
            GPU,
            "GPU is faster at every batch size",
        ),
        # 16 against 10, each within a factor of 2: beyond the interval at 64 and 256 only.
        (
            cpu(at_sizes(16.0, 16.0, 16.0, 640.0, 640.0), spread=2.0),
            gpu(TENS, spread=2.0),
            GPU,
            "GPU is faster at every batch size from 1 to 256, clearly so from ",
        ),
        (cpu(at_sizes(*(16.0,) * 5), spread=2.0), gpu(TENS, spread=2.0), GPU, UNSURE),
        (
            linear_cpu(),
            flat_gpu(1e6),
            CPU,
            "GPU is not faster than CPU at any batch size from 1 to 256, and clearly so.",
        ),
        (linear_cpu(), flat_gpu(2700, spread=1.5), CPU, f"{UNSURE}; measure to be sure."),
        (cpu(TENS), gpu(TENS), CPU, "GPU is not faster"),  # a tie is no win
        (
            linear_cpu(),
            gpu(at_sizes(80.0, 80.0, 80.0, 80.0, 1e5)),
            None,
            "GPU is faster at 16 but not at 256, the largest batch size searched; check a larger "
            "one.",
        ),
    ],
)
def test_without_a_crossover_it_is_said_who_is_faster(
    ours: Curve, theirs: Curve, faster: DeviceKind | None, because: str
) -> None:
    found = find_crossover(ours, theirs)
    assert isinstance(found, NoCrossover)
    assert found.faster is faster
    assert because in found.none_because
    assert found.searched == (ours.points[0].size, ours.points[-1].size)


@pytest.mark.parametrize("times", [{}, {4: 1.0}, {1000: 1.0, 2000: 1.0}])
def test_too_little_in_common_is_said(times: dict[int, float]) -> None:
    found = find_crossover(linear_cpu(), gpu(times))

    assert isinstance(found, NoCrossover)
    assert found.faster is None
    assert found.searched is None


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
