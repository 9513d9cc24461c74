"""From which batch size on a GPU beats generated code."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import predict_steps
from breakeven.studies.batch_sizes import search_loader_sizes
from breakeven.studies.comparison import compare_devices
from breakeven.studies.measured_step import measured_result, measured_step
from breakeven.studies.runner import Change
from breakeven.timing import Estimate, Source
from breakeven.verdict import Crossover, DeviceKind, GeneratedRun, NoCrossover
from breakeven.verdict.generated import CALL_NS
from factories.runs import device_op, loader_use, plain_run, traced_run

BEST = find_device("rtx-4090")
HOST = reference_host()
BASE = 32


def measured(ns: float) -> Estimate:
    return Estimate(value_ns=ns, low_ns=0.99 * ns, high_ns=1.01 * ns, source=Source.MEASURED)


def generated(ns: float) -> GeneratedRun:
    """Return code of which a whole step takes so long, its call included."""
    return GeneratedRun(code=measured(ns - CALL_NS[1] - 1), kept=measured(1), compile_ns=10**9)


# They take the GPU as long at every size, and long enough to be beaten by a call.
EVENTS = (device_op(),) * 100


def gpu_ns() -> float:
    (prediction,) = predict_steps(traced_run(*EVENTS, batch_size=BASE).trace, (BEST,), HOST)
    return prediction.estimate.value_ns


class ScriptedRuns:
    """A script whose step takes as long by generated code as a function of the size says."""

    def __init__(self, generated_ns: Callable[[int], float]) -> None:
        self.measured: list[int] = []
        self._generated_ns = generated_ns

    def plain(self, size: int) -> PlainRun:
        run = plain_run(round(100 * gpu_ns()), loader_use(size))
        return replace(run, generated=generated(self._generated_ns(size)))

    def record(self, change: Change, at: str) -> TracedRun:
        return traced_run(*EVENTS, batch_size=change.new_batch_size)

    def time_at(
        self, change: Change, *, budget_s: float, tries_generated: bool = False
    ) -> PlainRun | None:
        size = change.new_batch_size
        if tries_generated:
            self.measured.append(size)
        return self.plain(size)


def search(runs: ScriptedRuns) -> Crossover | NoCrossover | None:
    loader = loader_use(BASE)
    traced, plain = traced_run(*EVENTS, batch_size=BASE, loader=loader), runs.plain(BASE)
    results = (measured_result(plain, DeviceKind.CPU),)
    step = measured_step(traced, plain, plain, results)
    compared = compare_devices(step.program, (BEST,), HOST, results)
    found = search_loader_sizes(runs, step, compared, loader)  # type: ignore[arg-type]
    return found.generated_crossover


def test_the_second_size_is_where_the_gpu_is_expected_to_be_as_fast() -> None:
    runs = ScriptedRuns(lambda size: gpu_ns() * size / 1_000)
    crossover = search(runs)
    (size,) = runs.measured
    assert size in (1_024, 2_048)
    assert isinstance(crossover, Crossover)
    assert 512 < crossover.value <= 1_024
    assert crossover.low <= crossover.value <= crossover.high
    assert crossover.device == BEST.name
    assert crossover.searched[0] == BASE


def test_what_is_measured_there_counts() -> None:
    # As it is at 32 it would be overtaken at 1,000; but it hardly grows until 4,000.
    runs = ScriptedRuns(lambda size: gpu_ns() * (0.032 if size <= 1_024 else size / 4_000))
    crossover = search(runs)
    assert isinstance(crossover, Crossover)
    assert crossover.value > 1_024


def test_a_gpu_that_is_faster_at_the_own_size_is_said_to_be() -> None:
    crossover = search(ScriptedRuns(lambda size: 2 * gpu_ns() * size / BASE))
    assert isinstance(crossover, NoCrossover)
    assert crossover.faster is DeviceKind.GPU


def test_code_that_is_no_faster_is_not_searched_for() -> None:
    runs = ScriptedRuns(lambda size: 99 * gpu_ns())
    assert search(runs) is None
    assert runs.measured == []
