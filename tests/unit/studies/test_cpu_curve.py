from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from breakeven.studies import batch_sizes
from breakeven.studies.timed_grid import CpuCurve
from breakeven.timing import Estimate, Source


def estimate(value_ns: float, source: Source = Source.PREDICTED) -> Estimate:
    return Estimate(
        value_ns=value_ns, low_ns=value_ns / 1.02, high_ns=value_ns * 1.02, source=source
    )


def measure(
    curve: CpuCurve,
    time_ns: Callable[[int], float],
    others: tuple[Mapping[int, Estimate], ...] = (),
    num_bytes: Callable[[int], int] = lambda _: 1,
) -> list[int]:
    """Measure what the curve asks for, to its end, and return the sizes in order."""
    order: list[int] = []
    while wanted := curve.next_coarse() or curve.next_close(others):
        for size in wanted:
            assert size not in order
            order.append(size)
            curve.add(size, estimate(time_ns(size), Source.MEASURED), num_bytes(size))
    return order


def known(curve: CpuCurve) -> list[int]:
    return [size for size in curve.sizes if curve.is_known(size)]


def test_batch_sizes_are_measured_at_the_ends_and_a_factor_of_four_apart() -> None:
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    assert measure(curve, lambda size: 1_000.0 * size) == [10, 40, 160, 1_000]
    assert known(curve) == list(range(10, 1_001, 10))
    assert curve.at(40).source is Source.MEASURED
    assert curve.at(500).source is Source.PREDICTED
    assert curve.at(500).low_ns < 500_000 < curve.at(500).high_ns


def test_few_values_of_another_knob_are_all_measured_and_many_are_not() -> None:
    assert measure(CpuCurve(range(2, 13), is_batch_size=False), float) == list(range(2, 13))
    sizes = measure(CpuCurve(range(10, 1_001, 10), is_batch_size=False), float)
    assert sizes == [10, 20, 40, 80, 160, 320, 640, 1_000]


def test_crossing_is_measured_until_its_neighbours_are_adjacent() -> None:
    def cpu(size: int) -> float:
        return 20_000.0 + 700.0 * size

    gpus = tuple(
        dict.fromkeys(range(10, 1_001, 10), estimate(crossing)) for crossing in (200_000, 500_000)
    )
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    measured = measure(curve, cpu, gpus)
    # They cross at 257 and 686.
    assert {250, 260, 680, 690} <= set(measured)
    assert len(measured) < 14


def test_curves_far_apart_are_not_measured_further() -> None:
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    gpu = dict.fromkeys(range(10, 1_001, 10), estimate(1.0))
    assert len(measure(curve, lambda size: 1_000.0 * size, (gpu,))) == 4


def test_curves_that_touch_are_measured_where_they_are_nearest() -> None:
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    gpu = {size: estimate(1_010.0 * size + abs(size - 500) * 100) for size in curve.sizes}
    measured = measure(curve, lambda size: 1_000.0 * size, (gpu,))
    assert measured[4:] == [500]


def test_steps_of_more_than_a_second_are_left_out_and_told() -> None:
    curve = CpuCurve([2**power for power in range(13)], is_batch_size=True)
    measured = measure(curve, lambda size: 1e7 * size)
    assert max(measured) == 64
    assert curve.skipped is not None
    assert curve.skipped.size == 256
    assert "too long" in curve.skipped.because
    # The error of the line is known up to 16 times the largest size.
    assert max(known(curve)) == 1_024


def test_another_knob_is_not_told_beyond_its_measured_values() -> None:
    curve = CpuCurve([2**power for power in range(13)], is_batch_size=False)
    measured = measure(curve, lambda size: 1e6 * size**2)
    assert curve.skipped is not None
    assert max(known(curve)) == max(measured) < 4_096


def test_memory_that_is_short_ends_the_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "_memory_bytes", lambda: 1_000_000)
    curve = CpuCurve([1, 4, 16, 64, 256], is_batch_size=True)
    measured = measure(curve, float, num_bytes=lambda size: 10_000 * size)
    assert measured == [1, 4, 16]
    assert curve.skipped is not None
    assert "memory" in curve.skipped.because


def test_size_that_fails_ends_the_curve() -> None:
    curve = CpuCurve([1, 4, 16, 64], is_batch_size=True)
    curve.add(1, estimate(10.0, Source.MEASURED), 1)
    for size in curve.next_coarse():
        if size < 16:
            curve.add(size, estimate(10.0 * size, Source.MEASURED), 1)
        else:
            curve.fail(size)
    assert curve.next_coarse() == []
    assert known(curve) == [1, 4]


def test_curve_without_any_measurement_has_no_times() -> None:
    curve = CpuCurve([1, 2], is_batch_size=True)
    assert curve.next_coarse() == [1]
    curve.fail(1)
    assert curve.next_coarse() == [2]
    curve.fail(2)
    assert curve.next_coarse() == []
    assert known(curve) == []
    assert curve.next_close(({1: estimate(1.0)},)) == []
