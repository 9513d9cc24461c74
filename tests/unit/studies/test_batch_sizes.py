from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, LoaderUse, PlainRun, TracedRun, script_error
from breakeven.cost import reference_host
from breakeven.device import DeviceSpec, find_device
from breakeven.errors import Caveat
from breakeven.simulate import predict_steps
from breakeven.studies import batch_sizes as module
from breakeven.studies.batch_sizes import SizeSearch, search_loader_sizes, search_scaled_sizes
from breakeven.studies.comparison import compare_devices
from breakeven.studies.measured_step import measured_result, measured_step
from breakeven.studies.runner import Change
from breakeven.timing import BUSY_MACHINE, Estimate, Source
from breakeven.trace import ModelCall, Phase, RunFacts, StepTrace, TensorSpec
from breakeven.verdict import (
    Crossover,
    Curve,
    DeviceKind,
    GeneratedRun,
    NoCrossover,
)
from breakeven.verdict.generated import CALL_NS
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

    def time_at(self, change: Change, *, budget_s: float, **_: bool) -> PlainRun | None:
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


@pytest.mark.parametrize(("most", "told"), [(64, "sizes 16, 32, 64 were"), (16, "size 16 was")])
def test_sizes_that_other_work_held_up_are_told_together(most: int, told: str) -> None:
    class Busy(ScriptedRuns):
        def plain(self, size: int) -> PlainRun:
            caveats = (Caveat(code=BUSY_MACHINE, message="busy"),) if size <= most else ()
            return replace(super().plain(size), caveats=caveats)

    (caveat,) = searched(Busy(lambda size: gpu_ns() * size / 20), 256).caveats
    assert caveat.code == "busy-at-batch-size"
    assert f"batch {told} measured;" in caveat.message


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


def measured(ns: float) -> Estimate:
    return Estimate(value_ns=ns, low_ns=0.99 * ns, high_ns=1.01 * ns, source=Source.MEASURED)


def generated(ns: float) -> GeneratedRun:
    """Return code of which a whole step takes so long, its call included."""
    return GeneratedRun(code=measured(ns - CALL_NS[1] - 1), kept=measured(1), compile_ns=10**9)


# They take the GPU as long at every size, and long enough to be beaten by a call.
EVENTS = (device_op(),) * 100


class GeneratedRuns(ScriptedRuns):
    """A script whose step takes as long by generated code as a function of the size says."""

    def __init__(self, generated_ns: Callable[[int], float]) -> None:
        super().__init__(lambda _: 100 * base_ns())
        self._generated_ns = generated_ns

    def plain(self, size: int) -> PlainRun:
        return replace(super().plain(size), generated=generated(self._generated_ns(size)))

    def record(self, change: Change, at: str) -> TracedRun:
        return traced_run(*EVENTS, batch_size=change.new_batch_size)

    def time_at(
        self, change: Change, *, budget_s: float, tries_generated: bool = False
    ) -> PlainRun | None:
        if tries_generated:
            self.measured.append(change.new_batch_size)
        return self.plain(change.new_batch_size)


def base_ns() -> float:
    """Return the GPU's time for the step."""
    (prediction,) = predict_steps(traced_run(*EVENTS, batch_size=32).trace, (BEST,), HOST)
    return prediction.estimate.value_ns


def search_generated(runs: GeneratedRuns) -> Crossover | NoCrossover | None:
    return searched(runs, traced=traced_run(*EVENTS), devices=(BEST,)).generated_crossover


def test_the_second_size_is_where_the_gpu_is_expected_to_be_as_fast() -> None:
    runs = GeneratedRuns(lambda size: base_ns() * size / 1_000)
    crossover = search_generated(runs)
    (size,) = runs.measured
    assert size in (1_024, 2_048)
    assert isinstance(crossover, Crossover)
    assert 512 < crossover.value <= 1_024
    assert crossover.low <= crossover.value <= crossover.high
    assert crossover.device == BEST.name
    assert crossover.searched[0] == 32


def test_what_is_measured_there_counts() -> None:
    # As it is at 32 it would be overtaken at 1,000; but it hardly grows until 4,000.
    runs = GeneratedRuns(lambda size: base_ns() * (0.032 if size <= 1_024 else size / 4_000))
    crossover = search_generated(runs)
    assert isinstance(crossover, Crossover)
    assert crossover.value > 1_024


def test_a_gpu_that_is_faster_at_the_own_size_is_said_to_be() -> None:
    crossover = search_generated(GeneratedRuns(lambda size: 2 * base_ns() * size / 32))
    assert isinstance(crossover, NoCrossover)
    assert crossover.faster is DeviceKind.GPU


def test_code_that_is_no_faster_is_not_searched_for() -> None:
    runs = GeneratedRuns(lambda size: 99 * base_ns())
    assert search_generated(runs) is None
    assert runs.measured == []


def hand_fed(
    batch_size: int | None, step_ns: float, gpu: DeviceSpec = GPUS[0], *, num_batches: int = 1
) -> tuple[SizeSearch, StepTrace]:
    # The script finds its batch where it lies, and works on it.
    op = device_op(batch_size or 1)
    found = TensorSpec(shape=op.inputs[0].shape, dtype="float32", device="cuda:0", storage=1)
    made = replace(found, storage=2)
    forward = replace(op, inputs=(found,), outputs=(made,))
    calls = tuple(
        ModelCall(
            model="Net", location=None, stack=-1, is_training=True, has_grad=True,
            is_used_in_backward=True, first_event=2 * number, num_events=1,
        )
        for number in range(num_batches)
    )  # fmt: skip
    trace = StepTrace(
        events=(forward, replace(forward, phase=Phase.BACKWARD)) * num_batches,
        batch_size=None if batch_size is None else batch_size * num_batches,
        facts=RunFacts(model_calls=calls),
    )
    plain = plain_run(round(step_ns))
    results = (measured_result(plain, DeviceKind.CPU),)
    step = measured_step(TracedRun(trace=trace), plain, plain, results)
    compared = compare_devices(step.program, (gpu,), HOST, results)
    return search_scaled_sizes(step, compared), trace


def test_curves_go_around_the_one_size_that_was_run():
    found, trace = hand_fed(48, 5e4)
    cpu, gpu = found.curves
    around = [point.size for point in cpu.points]
    assert around == sorted({48, *(2**power for power in range(12))})
    assert [point.size for point in gpu.points] == around
    sources = {point.size: point.source for point in cpu.points}
    assert sources.pop(48) is Source.MEASURED
    assert set(sources.values()) == {Source.PREDICTED}
    # The curve of the GPUS[0] goes through the step as it was recorded.
    (as_recorded,) = predict_steps(trace, (GPUS[0],), HOST)
    own = next(point for point in gpu.points if point.size == 48)
    assert own.step_ns == as_recorded.estimate.value_ns
    (caveat,) = found.caveats
    assert caveat.code == "batch-sizes-predicted"
    assert "only a batch of 48 was run" in caveat.message


def test_what_is_predicted_of_the_cpu_is_less_certain_the_farther_it_is():
    cpu = hand_fed(64, 5e4)[0].curves[0]
    widths = {point.size: point.high_ns / point.low_ns for point in cpu.points}
    assert widths[64] < widths[128] < widths[1024]
    assert widths[64] < widths[32] < widths[4]


def test_each_batch_whose_gradients_are_accumulated_keeps_a_sample():
    cpu = hand_fed(3, 5e4, num_batches=8)[0].curves[0]
    assert [point.size for point in cpu.points][:3] == [8, 16, 24]


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_batch_that_cannot_be_told_gives_a_reason_and_no_option(batch_size: int | None):
    found, _ = hand_fed(batch_size, 5e4)
    crossover = found.crossover
    assert isinstance(crossover, NoCrossover)
    assert crossover.axis == "batch_size"
    assert crossover.none_because.startswith("The script feeds its batches by hand")
    assert "cannot be scaled: " in crossover.none_because
    assert "--batch-size N" not in crossover.none_because
    assert (found.curves, found.caveats) == ((), ())


@pytest.mark.parametrize(
    ("limit", "is_short"), [("2097152\n", True), ("max\n", False), (None, False)]
)
def test_limit_of_a_container_counts(
    limit: str | None, is_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(module, "_CONTAINER_LIMITS", (tmp_path / "absent", file))
    assert module.why_not_measured(1.0, 1_000_000) is None
    assert (module.why_not_measured(1.0, 1_100_000) is not None) is is_short
