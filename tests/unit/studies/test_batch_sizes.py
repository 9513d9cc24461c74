from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, LoaderUse, PlainRun, TracedRun, script_error
from breakeven.cost import reference_host
from breakeven.device import DeviceSpec, find_device
from breakeven.errors import Caveat
from breakeven.simulate import predict_steps
from breakeven.studies import batch_sizes as module
from breakeven.studies.batch_sizes import SizeSearch, search_loader_sizes
from breakeven.studies.comparison import compare_devices
from breakeven.studies.measured_step import measured_result, measured_step
from breakeven.studies.runner import Change
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.verdict import Crossover, Curve, DeviceKind, NoCrossover, find_crossover
from factories.runs import SCRIPT, device_op, failure, loader_use, plain_run, traced_run

GPUS = (find_device("t4"), find_device("rtx-4090"))
BEST = GPUS[1]
HOST = reference_host()


class ScriptedRuns:
    """A script whose steps take as long on the CPU as a function of the batch size says."""

    def __init__(
        self, step_ns: Callable[[int], float], *, fails_from: int = 1 << 30, second: str = "alike"
    ) -> None:
        self.measured: list[int] = []
        self.traced: list[int] = []
        self._step_ns = step_ns
        self._fails_from = fails_from
        self._second = second

    def plain(self, size: int) -> PlainRun:
        return plain_run(round(self._step_ns(size)), loader_use(size))

    def record(self, change: Change, at: str) -> TracedRun:
        new_batch_size = change.new_batch_size
        self.traced.append(new_batch_size)
        if self._second == "fails":
            raise script_error(failure(FailureKind.EXCEPTION, "ran out"), SCRIPT, "")
        events = (device_op(new_batch_size),) * (2 if self._second == "other" else 1)
        return traced_run(*events, batch_size=new_batch_size)

    def time_at(self, change: Change, *, budget_s: float) -> PlainRun | None:
        size = change.new_batch_size
        self.measured.append(size)
        return self.plain(size) if size < self._fails_from else None


def searched(
    runs: ScriptedRuns,
    base: int = 32,
    devices: Sequence[DeviceSpec] = GPUS,
    traced: TracedRun | None = None,
) -> SizeSearch:
    plain = runs.plain(base)
    results = (measured_result(plain, DeviceKind.CPU),)
    step = measured_step(traced or traced_run(batch_size=base), plain, plain, results)
    compared = compare_devices(step.program, devices, HOST, results)
    assert plain.loader is not None
    return search_loader_sizes(runs, step, compared, plain.loader)  # type: ignore[arg-type]


def search(runs: ScriptedRuns, base: int = 32) -> tuple[Crossover | NoCrossover, tuple[Curve, ...]]:
    found = searched(runs, base)
    return found.crossover, found.curves


def measured_sizes(curve: Curve) -> list[int]:
    return [point.size for point in curve.points if point.source is Source.MEASURED]


def gpu_ns(size: int = 32) -> float:
    """Return the GPU's time for the one operator, which hardly depends on its size here."""
    (prediction,) = predict_steps(traced_run(batch_size=size).trace, (BEST,), HOST)
    return prediction.estimate.value_ns


def test_search_goes_up_while_the_cpu_wins_and_ends_between() -> None:
    # The CPU needs as long as the GPU at 700 samples: 32, 128 and 512 are its own, 2048 is not.
    runs = ScriptedRuns(lambda size: gpu_ns() * size / 700)
    crossover, curves = search(runs)
    assert runs.traced == [64]
    assert runs.measured == [128, 512, 2_048, 1_024]
    assert isinstance(crossover, Crossover)
    assert 512 < crossover.value <= 1_024
    assert crossover.low <= crossover.value <= crossover.high
    assert (crossover.axis, crossover.device) == ("batch_size", BEST.name)
    assert measured_sizes(curves[0]) == [32, 128, 512, 1_024, 2_048]
    assert {64, 256} == {p.size for p in curves[0].points} - set(measured_sizes(curves[0]))


def test_search_goes_down_while_the_gpu_wins_and_ends_between() -> None:
    # 256 and 64 are the GPU's, 16 is the CPU's.
    runs = ScriptedRuns(lambda size: gpu_ns() * size / 20)
    crossover, _ = search(runs, base=256)
    assert runs.measured == [64, 16, 32]
    assert isinstance(crossover, Crossover)
    assert 16 < crossover.value <= 32


@pytest.mark.parametrize("base", [2, 3, 16, 32])
def test_gpu_that_wins_at_every_size_is_followed_down_to_one(base: int) -> None:
    runs = ScriptedRuns(lambda size: 20 * gpu_ns() + size)
    crossover, curves = search(runs, base)
    assert runs.measured[-1] == 1
    assert isinstance(crossover, NoCrossover)
    assert crossover.faster is DeviceKind.GPU
    assert crossover.searched == (1, base)
    assert measured_sizes(curves[0]) == sorted({*runs.measured, base})


def test_cpu_that_always_wins_is_followed_up_to_the_largest_size() -> None:
    runs = ScriptedRuns(lambda size: 1_000 + size / 1_000)
    crossover, _ = search(runs)
    assert runs.measured == [128, 512, 2_048, 8_192, 32_768]
    assert isinstance(crossover, NoCrossover)
    assert crossover.faster is DeviceKind.CPU


@pytest.mark.parametrize(
    ("most", "told"), [(64, "batch sizes 16, 32, 64 were"), (16, "batch size 16 was")]
)
def test_sizes_that_other_work_held_up_are_told_together(most: int, told: str) -> None:
    class Busy(ScriptedRuns):
        def plain(self, size: int) -> PlainRun:
            caveats = (Caveat(code=BUSY_MACHINE, message="busy"),) if size <= most else ()
            return replace(super().plain(size), caveats=caveats)

    (caveat,) = searched(Busy(lambda size: gpu_ns() * size / 20), 256).caveats
    assert caveat.code == "busy-at-batch-size"
    assert f"when {told} measured" in caveat.message


def of_four(size: int) -> LoaderUse:
    return replace(loader_use(size), batches_per_step=4)


def test_a_step_of_several_batches_is_told_by_all_its_samples() -> None:
    class Accumulating(ScriptedRuns):
        def plain(self, size: int) -> PlainRun:
            return plain_run(round(self._step_ns(size)), of_four(size))

        def record(self, change: Change, at: str) -> TracedRun:
            size = change.new_batch_size
            self.traced.append(size)
            return traced_run(device_op(4 * size), batch_size=4 * size)

    # 256 and 64 of a batch are the GPU's, 16 is the CPU's.
    runs = Accumulating(lambda size: gpu_ns() * size / 20)
    found = searched(runs, 256, traced=traced_run(device_op(1_024), batch_size=1_024))
    crossover, curves = found.crossover, found.curves
    assert runs.traced == [512]
    assert runs.measured == [64, 16, 32]
    assert isinstance(crossover, Crossover)
    assert 4 * 16 < crossover.value <= 4 * 32
    for curve in curves:
        assert [point.size for point in curve.points] == [64, 128, 256, 512, 1_024]
    assert measured_sizes(curves[0]) == [64, 128, 256, 1_024]


def test_search_stops_before_steps_of_more_than_a_second() -> None:
    slow = replace(BEST, launch_generation=BEST.launch_generation, memory_bytes_per_s=1.0)
    # A memory of one byte a second: the GPU needs days, the CPU 10 ms a sample.
    runs = ScriptedRuns(lambda size: 1e7 * size)
    searched(runs, 4, (slow,))
    # 16 takes 160 ms and 64 takes 640 ms; 256 would take 2.56 s.
    assert runs.measured == [16, 64]


def test_search_stops_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # 300 MB of torch and 100 kB a sample: 32 samples take 303 MB, 2048 take 505 MB, and
    # the size after them is expected to take four times that.
    class Hungry(ScriptedRuns):
        def plain(self, size: int) -> PlainRun:
            return replace(super().plain(size), peak_memory_bytes=300_000_000 + 100_000 * size)

    for half, largest in [(2.1e9, 8_192), (2.0e9, 2_048), (1.3e9, 512), (1.22e9, 128)]:
        monkeypatch.setattr(module, "_memory_bytes", lambda half=half: 2 * half)
        runs = Hungry(lambda size: 1_000 + size / 1_000)
        search(runs)
        assert max(runs.measured) == largest


def test_search_stops_where_the_script_fails() -> None:
    runs = ScriptedRuns(lambda size: 1_000 + size / 1_000, fails_from=512)
    crossover, curves = search(runs)
    assert runs.measured == [128, 512]
    # Whether the script has such sizes at all is unknown, so none is predicted either.
    assert [point.size for point in curves[0].points] == [32, 64, 128]
    assert isinstance(crossover, NoCrossover)
    assert crossover.searched == (32, 128)


def test_script_that_can_be_measured_at_no_other_size_has_no_crossover() -> None:
    runs = ScriptedRuns(lambda size: 1_000 + size / 1_000, fails_from=0)
    crossover, curves = search(runs)
    assert isinstance(crossover, NoCrossover)
    assert "No other batch size" in crossover.none_because
    assert len(curves) == 3


def test_size_that_the_loader_did_not_take_counts_as_not_measured() -> None:
    class Stubborn(ScriptedRuns):
        def plain(self, size: int) -> PlainRun:
            return plain_run(1_000, loader_use(32))

    crossover, curves = search(Stubborn(lambda size: 1_000))
    assert isinstance(crossover, NoCrossover)
    assert [point.size for point in curves[0].points] == [32]


def test_script_that_fails_at_another_size_says_so() -> None:
    crossover, curves = search(ScriptedRuns(lambda size: 1e6, second="fails"))
    assert curves == ()
    assert isinstance(crossover, NoCrossover)
    assert crossover.none_because.startswith("The script fails at batch size 64: train.py raised")


def test_step_that_is_another_one_at_another_size_says_so() -> None:
    crossover, curves = search(ScriptedRuns(lambda size: 1e6, second="other"))
    assert curves == ()
    assert isinstance(crossover, NoCrossover)
    assert crossover.none_because.startswith("The step is another one at batch size 64: ")
    assert "aten.relu.default instead of the end of the step" in crossover.none_because


@pytest.mark.parametrize(("base", "other"), [(32, 16), (4, 2), (3, 6), (2, 4), (1, 2)])
def test_slow_step_is_recorded_at_half_its_size_or_twice(base: int, other: int) -> None:
    runs = ScriptedRuns(lambda size: 2e9)
    search(runs, base)
    assert runs.traced == [other]


def test_curves_have_every_power_of_two_between_the_measured_sizes() -> None:
    runs = ScriptedRuns(lambda size: gpu_ns() * size / 600)
    _, (cpu, *gpus) = search(runs, base=48)
    assert measured_sizes(cpu) == [48, 192, 384, 768]
    for curve, device in zip(gpus, GPUS, strict=True):
        assert (curve.device, curve.kind, curve.axis) == (device.name, DeviceKind.GPU, "batch_size")
    for curve in (cpu, *gpus):
        assert [point.size for point in curve.points] == [48, 64, 128, 192, 256, 384, 512, 768]
    # The CPU's time is in proportion to the size, between the measured sizes as well.
    for point in cpu.points:
        assert point.step_ns == pytest.approx(gpu_ns() * point.size / 600, rel=1e-3)
        assert (point.low_ns < point.step_ns) is (point.source is Source.PREDICTED)


def test_crossover_between_two_measured_sizes_is_less_certain_than_they_are() -> None:
    # Neither the CPU's times nor the rest of this search leave any doubt but that of the GPU.
    runs = ScriptedRuns(lambda size: gpu_ns() * size / 700)
    crossover, (cpu, *gpus) = search(runs)
    exact = find_crossover(
        replace(cpu, points=tuple(replace(p, source=Source.PREDICTED) for p in cpu.points)), gpus[1]
    )
    assert isinstance(crossover, Crossover)
    assert isinstance(exact, Crossover)
    assert crossover.value == pytest.approx(exact.value, rel=0.02)
    assert crossover.low <= exact.low


def test_sizes_whose_steps_take_too_long_are_predicted() -> None:
    slow = replace(BEST, memory_bytes_per_s=1.0)
    runs = ScriptedRuns(lambda size: 1e7 * size)
    found = searched(runs, 4, (slow,))
    crossover, (cpu, gpu) = found.crossover, found.curves
    assert measured_sizes(cpu) == [4, 16, 64]
    # 16 times the largest size that was measured.
    assert [point.size for point in cpu.points] == [2**power for power in range(2, 11)]
    assert [point.size for point in gpu.points] == [point.size for point in cpu.points]
    assert cpu.points[-1].step_ns == pytest.approx(1e7 * 1_024)
    assert cpu.points[-1].source is Source.PREDICTED
    assert cpu.points[-1].high_ns > 1.5 * cpu.points[-1].step_ns
    assert isinstance(crossover, NoCrossover)
    assert crossover.searched == (4, 1_024)
    (caveat,) = found.caveats
    assert caveat.code == "batch-size-not-measured"
    assert caveat.message.startswith("batch sizes above 64 were not measured on this CPU, since a")


def test_sizes_that_do_not_fit_the_gpu_are_not_predicted() -> None:
    small = replace(BEST, memory_bytes_per_s=1.0, memory_bytes=0)
    runs = ScriptedRuns(lambda size: 1e7 * size)
    found = searched(runs, 4, (small,))
    assert [point.size for point in found.curves[0].points] == [4, 8, 16, 32, 64]
    assert found.caveats == ()
