from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from breakeven.timing import Source
from breakeven.verdict import (
    Crossover,
    Curve,
    CurvePoint,
    DeviceKind,
    NoCrossover,
    find_crossover,
)

_times = st.floats(1, 1e6)
_spreads = st.floats(1, 3)
_sizes = st.lists(st.integers(1, 10_000), min_size=2, max_size=8, unique=True)


def curve(kind: DeviceKind, points: list[tuple[int, float, float]]) -> Curve:
    return Curve(
        device=kind.value,
        kind=kind,
        axis="batch_size",
        points=tuple(
            CurvePoint(
                size=size,
                step_ns=time,
                low_ns=time / spread,
                high_ns=time * spread,
                source=Source.PREDICTED,
            )
            for size, time, spread in points
        ),
    )


@st.composite
def curves(draw: st.DrawFn) -> tuple[Curve, Curve]:
    sizes = draw(_sizes)
    cpu, gpu = (
        curve(kind, [(size, draw(_times), draw(_spreads)) for size in sizes])
        for kind in (DeviceKind.CPU, DeviceKind.GPU)
    )
    return cpu, gpu


@given(curves())
def test_crossover_lies_in_its_interval_and_in_what_was_searched(
    pair: tuple[Curve, Curve],
) -> None:
    found = find_crossover(*pair)
    if isinstance(found, NoCrossover):
        assert found.none_because
        return
    smallest, largest = found.searched
    assert smallest <= found.low <= found.value <= largest
    assert found.high is None or found.value <= found.high <= largest


@given(curves())
def test_beyond_the_crossover_no_size_is_clearly_lost(pair: tuple[Curve, Curve]) -> None:
    cpu, gpu = pair
    found = find_crossover(cpu, gpu)
    if not isinstance(found, Crossover):
        return
    times = {point.size: point for point in cpu.points}
    for point in gpu.points:
        if point.size >= found.value:
            assert point.low_ns < times[point.size].high_ns


@given(curves(), st.floats(0.1, 1))
def test_a_faster_gpu_never_wins_later(pair: tuple[Curve, Curve], factor: float) -> None:
    cpu, gpu = pair
    faster = msgspec.structs.replace(
        gpu,
        points=tuple(
            msgspec.structs.replace(
                point,
                step_ns=point.step_ns * factor,
                low_ns=point.low_ns * factor,
                high_ns=point.high_ns * factor,
            )
            for point in gpu.points
        ),
    )
    before, after = find_crossover(cpu, gpu), find_crossover(cpu, faster)
    if isinstance(before, Crossover):
        if isinstance(after, Crossover):
            assert after.value <= before.value
        else:
            assert after.faster is DeviceKind.GPU


@given(st.floats(1, 1e3), st.floats(1, 1e3), st.floats(0.3, 1))
def test_power_laws_cross_where_they_should(fixed: float, slope: float, power: float) -> None:
    sizes = (1, 10, 100, 1_000, 10_000)
    cpu = curve(DeviceKind.CPU, [(size, slope * size**power, 1.0) for size in sizes])
    gpu = curve(DeviceKind.GPU, [(size, fixed, 1.0) for size in sizes])
    root = (fixed / slope) ** (1 / power)
    found = find_crossover(cpu, gpu)

    if isinstance(found, Crossover):
        assert math.isclose(found.value, root, rel_tol=1e-6, abs_tol=1.0)
    elif found.faster is DeviceKind.GPU:
        assert root <= 1 + 1e-9
    else:
        assert root >= 10_000 * (1 - 1e-9)
