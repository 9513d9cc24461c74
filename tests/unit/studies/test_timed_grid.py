from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from msgspec.structs import replace

from breakeven.capture import LoaderUse, PlainRun, RunFailure, RunRequest, ThreadTrial
from breakeven.progress import SilentProgress
from breakeven.store import MachineKey, machine_key
from breakeven.studies import batch_sizes
from breakeven.studies.engine import EngineRun, RunCache
from breakeven.studies.runner import Runner
from breakeven.studies.sweep_axes import Grid, Settings, assign_roles, parse_axis, values_at
from breakeven.studies.timed_grid import CpuCurve, TimedGrid
from breakeven.timing import Estimate, Measurement, Source
from breakeven.verdict import AxisRole
from factories.runs import SCRIPT, ScriptedLauncher, failure, loader_use, plain_run

Answer = Callable[[RunRequest], PlainRun | RunFailure]


class FakeEngine:
    """Answers by a function of the request, and keeps the requests."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[RunRequest] = []
        self._answer = answer
        self._machine = machine_key(processor="Made-up CPU", torch_version="2.9")

    def machines(self) -> Sequence[MachineKey]:
        return (self._machine,)

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        for request in requests:
            self.requests.append(request)
            yield EngineRun(
                request=request, answer=self._answer(request), output="", machine=self._machine
            )


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: "/dev/null/breakeven")


def measure(
    answer: Answer, *over: str, arguments: tuple[str, ...] = (), has_gpu: bool = False,
    gpu_ns: float | None = None, loader: LoaderUse | None = None, only_size: int | None = None,
) -> tuple[TimedGrid, FakeEngine, list[Settings]]:  # fmt: skip
    """Measure a grid to its end; return it, its engine, and the points as they were done."""
    axes = assign_roles([parse_axis(text) for text in over], arguments)
    progress, engine, done = SilentProgress(), FakeEngine(answer), list[Settings]()

    class MadeUpRecordings:
        def loader_at(self, _: Settings) -> LoaderUse | None:
            return loader

        def only_size_at(self, settings: Settings) -> int | None:
            # A step is known by all options of the script.
            values_at(settings, [axis for axis in axes if axis.role is AxisRole.ARGUMENT])
            return only_size

    grid = TimedGrid(
        runner=Runner(ScriptedLauncher(()), SCRIPT, 60.0, progress),  # type: ignore[arg-type]
        grid=Grid(axes, arguments), recorded=MadeUpRecordings(), kept=RunCache(engine),  # type: ignore[arg-type]
        is_there=lambda _: True, progress=progress, on_point=done.append, has_gpu=has_gpu,
    )  # fmt: skip

    def others(_: Settings, sizes: Sequence[int]) -> Sequence[Mapping[int, Estimate]]:
        if gpu_ns is None:
            return ()
        time = Estimate(value_ns=gpu_ns, low_ns=gpu_ns, high_ns=gpu_ns, source=Source.PREDICTED)
        return (dict.fromkeys(sizes, time),)

    grid.measure(others)
    return grid, engine, done


def width(request: RunRequest) -> int:
    return int(request.target.arguments[0])


def test_every_word_and_fraction_is_measured() -> None:
    grid, engine, done = measure(
        lambda _: plain_run(), "act=relu,tanh", "lr=0.1,0.01", arguments=("{act}", "{lr}")
    )
    assert [request.target.arguments for request in engine.requests] == [
        ("relu", "0.1"), ("relu", "0.01"), ("tanh", "0.1"), ("tanh", "0.01"),
    ]  # fmt: skip
    assert len(grid.cpu) == len(done) == 4


def test_sizes_near_a_crossing_get_a_larger_budget() -> None:
    grid, engine, _ = measure(
        lambda request: plain_run(1_000 * width(request)),
        "batch_size=10..1000+10", arguments=("{batch_size}",), gpu_ns=500_500.0,
    )  # fmt: skip
    budgets = {width(request): request.budget_s for request in engine.requests}
    assert {500, 510} <= budgets.keys()
    assert budgets[500] > budgets[10] == budgets[1_000]
    assert len(budgets) < 10
    cpu = grid.cpu_at({"batch_size": 300})
    assert cpu is not None
    assert (cpu[1].source, cpu[1].step_ns) == (Source.PREDICTED, pytest.approx(300_000, rel=0.1))
    assert (cpu[1].num_samples, cpu[1].fits) == (0, None)


def test_each_number_of_threads_has_a_curve_of_its_own() -> None:
    grid, engine, _ = measure(
        lambda request: plain_run(1_000 * request.configuration.num_threads * width(request)),
        "n=1..8", "threads=1,2", arguments=("{n}",),
    )  # fmt: skip
    assert {request.configuration.num_threads for request in engine.requests} == {1, 2}
    found = [grid.cpu_at({"n": 4, "threads": threads}) for threads in (1, 2)]
    assert [cpu and cpu[1].step_ns for cpu in found] == [4_000, 8_000]


def test_gpu_of_this_machine_is_measured_at_the_same_points() -> None:
    grid, _, done = measure(
        lambda request: plain_run(100 if request.on_gpu else 1_000),
        "n=1..8", arguments=("{n}",), has_gpu=True,
    )  # fmt: skip
    assert grid.gpu.keys() == grid.cpu.keys() == {(1,), (2,), (4,), (8,)}
    assert grid.gpu[1,].measurement.median_ns == 100
    assert len(done) == 4
    assert grid.caveats() == ()


def test_gpu_that_the_script_fails_on_is_told() -> None:
    grid, _, _ = measure(
        lambda request: failure() if request.on_gpu else plain_run(),
        "n=1..8", arguments=("{n}",), has_gpu=True,
    )  # fmt: skip
    assert grid.gpu == {}
    (caveat,) = grid.caveats()
    assert caveat.code == "gpu-not-measured"
    assert "4 points" in caveat.message
    assert "no GPU" in caveat.message


def test_failures_are_told_with_the_reason_and_others_are_measured() -> None:
    grid, _, done = measure(
        lambda request: failure(message="too wide") if width(request) > 4 else plain_run(),
        "n=1..16", arguments=("{n}",),
    )  # fmt: skip
    assert grid.failures.keys() == {(8,), (16,)}
    assert all("too wide" in message for message in grid.failures.values())
    assert grid.cpu.keys() == {(1,), (2,), (4,)}
    assert len(done) == 5
    assert grid.cpu_at({"n": 8}) is None


def test_loader_that_keeps_its_batch_size_is_a_failure() -> None:
    own = loader_use(32)
    grid, engine, _ = measure(
        lambda _: replace(plain_run(), loader=own), "batch_size=32,64", loader=own
    )
    changes = [(r.loader_batch_size, r.new_batch_size) for r in engine.requests]
    assert changes == [(0, 0), (32, 64)]
    assert grid.cpu.keys() == {(32,)}
    assert "64" in grid.failures[64,]


def test_sizes_that_would_take_too_long_are_told() -> None:
    grid, _, _ = measure(
        lambda request: plain_run(10_000_000 * width(request)),
        "batch_size=1..4096", arguments=("{batch_size}",),
    )  # fmt: skip
    (caveat,) = grid.caveats()
    assert caveat.code == "size-not-measured"
    assert "batch_size from 256 on" in caveat.message
    assert "predicted from the others up to 1024, and left out beyond" in caveat.message


def with_one_thread(run: PlainRun, step_ns: int) -> PlainRun:
    trial = ThreadTrial(num_threads=1, measurement=Measurement(samples_ns=(step_ns,) * 9))
    return replace(run, num_threads=4, trials=(trial,))


def test_each_point_has_the_threads_that_suit_it() -> None:
    grid, engine, _ = measure(
        lambda request: with_one_thread(plain_run(1_000_000), 1_000 * width(request)),
        "width=500,2000", arguments=("{width}",),
    )  # fmt: skip
    assert all(request.tries_threads for request in engine.requests)
    found = {key: (run.num_threads, run.measurement.median_ns) for key, run in grid.cpu.items()}
    assert found == {(500,): (1, 500_000), (2_000,): (4, 1_000_000)}


def test_a_batch_size_that_cannot_be_set_is_measured_once_and_others_follow() -> None:
    grid, engine, _ = measure(
        lambda request: plain_run(1_000_000 * width(request)),
        "batch_size=8,64,2000", "width=1,2,3,4", arguments=("{width}",), only_size=16, gpu_ns=1e6,
    )  # fmt: skip

    assert [width(request) for request in engine.requests] == [1, 2, 3, 4]
    assert {request.new_batch_size for request in engine.requests} == {0}
    times = [grid.cpu_at({"batch_size": size, "width": 2}) for size in (8, 64, 2000)]
    (_, small), (_, large), unknown = times  # type: ignore[misc]
    assert small.step_ns < 2_000_000 < large.step_ns
    assert small.source is large.source is Source.PREDICTED
    assert unknown is None  # 64 times as far from what was measured, and more


def estimate(value_ns: float, source: Source = Source.PREDICTED) -> Estimate:
    return Estimate(
        value_ns=value_ns, low_ns=value_ns / 1.02, high_ns=value_ns * 1.02, source=source
    )


def measure_curve(
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
    assert measure_curve(curve, lambda size: 1_000.0 * size) == [10, 40, 160, 1_000]
    assert known(curve) == list(range(10, 1_001, 10))
    assert curve.at(40).source is Source.MEASURED
    assert curve.at(500).source is Source.PREDICTED
    assert curve.at(500).low_ns < 500_000 < curve.at(500).high_ns


def test_few_values_of_another_knob_are_all_measured_and_many_are_not() -> None:
    assert measure_curve(CpuCurve(range(2, 13), is_batch_size=False), float) == list(range(2, 13))
    sizes = measure_curve(CpuCurve(range(10, 1_001, 10), is_batch_size=False), float)
    assert sizes == [10, 20, 40, 80, 160, 320, 640, 1_000]


def test_crossing_is_measured_until_its_neighbours_are_adjacent() -> None:
    def cpu(size: int) -> float:
        return 20_000.0 + 700.0 * size

    gpus = tuple(
        dict.fromkeys(range(10, 1_001, 10), estimate(crossing)) for crossing in (200_000, 500_000)
    )
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    measured = measure_curve(curve, cpu, gpus)
    # They cross at 257 and 686.
    assert {250, 260, 680, 690} <= set(measured)
    assert len(measured) < 14


def test_curves_far_apart_are_not_measured_further() -> None:
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    gpu = dict.fromkeys(range(10, 1_001, 10), estimate(1.0))
    assert len(measure_curve(curve, lambda size: 1_000.0 * size, (gpu,))) == 4


def test_curves_that_touch_are_measured_where_they_are_nearest() -> None:
    curve = CpuCurve(range(10, 1_001, 10), is_batch_size=True)
    gpu = {size: estimate(1_010.0 * size + abs(size - 500) * 100) for size in curve.sizes}
    measured = measure_curve(curve, lambda size: 1_000.0 * size, (gpu,))
    assert measured[4:] == [500]


def test_steps_of_more_than_a_second_are_left_out_and_told() -> None:
    curve = CpuCurve([2**power for power in range(13)], is_batch_size=True)
    measured = measure_curve(curve, lambda size: 1e7 * size)
    assert max(measured) == 64
    assert curve.skipped is not None
    assert curve.skipped.size == 256
    assert "too long" in curve.skipped.because
    # The error of the line is known up to 16 times the largest size.
    assert max(known(curve)) == 1_024


def test_another_knob_is_not_told_beyond_its_measured_values() -> None:
    curve = CpuCurve([2**power for power in range(13)], is_batch_size=False)
    measured = measure_curve(curve, lambda size: 1e6 * size**2)
    assert curve.skipped is not None
    assert max(known(curve)) == max(measured) < 4_096


def test_memory_that_is_short_ends_the_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "_memory_bytes", lambda: 1_000_000)
    curve = CpuCurve([1, 4, 16, 64, 256], is_batch_size=True)
    measured = measure_curve(curve, float, num_bytes=lambda size: 10_000 * size)
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
