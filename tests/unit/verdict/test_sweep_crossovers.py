from __future__ import annotations

from collections.abc import Callable

import pytest

from breakeven.timing import Source
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisRole,
    AxisValue,
    Crossover,
    DeviceKind,
    NoCrossover,
    SweepAxis,
    SweepPoint,
    find_sweep_crossovers,
    sweep_curves,
)

Times = Callable[[dict[str, AxisValue]], float]


def axis(name: str, *values: AxisValue, role: AxisRole = AxisRole.ARGUMENT) -> SweepAxis:
    return SweepAxis(name=name, role=role, values=values)


BATCH = axis("batch_size", 16, 64, 256, 1_024, role=AxisRole.BATCH_SIZE)
THREADS = axis("threads", 1, 2, role=AxisRole.THREADS)
GPUS = axis("num_devices", 1, 2, 4, role=AxisRole.NUM_DEVICES)


def points(
    *axes: SweepAxis, cpu: Times, gpu: Times, fits: Callable[[dict[str, AxisValue]], bool] = bool,
    parameters: Callable[[dict[str, AxisValue]], int] = lambda _: 1_000,
) -> list[SweepPoint]:  # fmt: skip
    """Return the points of a CPU and a GPU over the grid, with intervals of 5 %."""
    grid: list[dict[str, AxisValue]] = [{}]
    for one in axes:
        grid = [settings | {one.name: value} for settings in grid for value in one.values]
    found: list[SweepPoint] = []
    for settings in grid:
        threads = settings.get("threads", 2)
        names = {
            DeviceKind.CPU: f"A CPU ({threads} thread{'' if threads == 1 else 's'})",
            DeviceKind.GPU: "A GPU",
        }
        for kind, times in ((DeviceKind.CPU, cpu), (DeviceKind.GPU, gpu)):
            step_ns = float(times(settings))
            found.append(
                SweepPoint(
                    settings=settings,
                    device=names[kind],
                    processor="A CPU" if kind is DeviceKind.CPU else "",
                    kind=kind,
                    source=Source.MEASURED if kind is DeviceKind.CPU else Source.PREDICTED,
                    step_ns=step_ns,
                    low_ns=step_ns / 1.05,
                    high_ns=step_ns * 1.05,
                    num_parameters=parameters(settings),
                    fits=fits(settings) if kind is DeviceKind.GPU else True,
                )
            )
    return found


def size(settings: dict[str, AxisValue], name: str = "batch_size") -> float:
    value = settings[name]
    assert not isinstance(value, str)
    return float(value)


def test_crossover_along_the_batch_size() -> None:
    # 1 µs a sample against 100 µs a step: they cross at 100.
    given = points(BATCH, cpu=lambda s: 1_000 * size(s), gpu=lambda _: 100_000)
    (found,) = find_sweep_crossovers(given, [BATCH])
    assert (found.device, found.cpu, found.held) == ("A GPU", "A CPU (2 threads)", {})
    assert isinstance(found.outcome, Crossover)
    assert found.outcome.low <= 100 <= (found.outcome.high or 0)
    assert found.outcome.value == pytest.approx(101, abs=2)
    assert found.outcome.searched == (16, 1_024)


def test_gpu_is_compared_with_the_best_number_of_threads_at_each_size() -> None:
    # Two threads cost 30 µs to start and halve the rest: they win from 60 samples on.
    def cpu(settings: dict[str, AxisValue]) -> float:
        is_two = settings["threads"] == 2
        return 30_000 + 500 * size(settings) if is_two else 1_000 * size(settings)

    given = points(BATCH, THREADS, cpu=cpu, gpu=lambda _: 100_000)
    (found,) = find_sweep_crossovers(given, [BATCH, THREADS])
    assert found.held == {}
    assert found.cpu == "A CPU (best number of threads)"
    assert isinstance(found.outcome, Crossover)
    # With two threads they cross at 140, not at the 100 of one thread.
    assert found.outcome.low <= 140 <= (found.outcome.high or 0)
    assert found.outcome.value > 110


def test_other_axes_are_held() -> None:
    act = axis("act", "relu", "tanh")
    given = points(
        BATCH, act, gpu=lambda _: 100_000,
        cpu=lambda s: size(s) * (1_000 if s["act"] == "relu" else 4_000),
    )  # fmt: skip
    found = find_sweep_crossovers(given, [BATCH, act])
    values = {str(c.held["act"]): c.outcome.value for c in found}  # type: ignore[union-attr]
    assert values["relu"] == pytest.approx(101, abs=2)
    assert values["tanh"] == pytest.approx(26, abs=2)


def test_more_gpus_are_compared_by_the_samples_that_they_do() -> None:
    # A step of the CPU takes 60; n GPUs do n batches in 100, so that two of them win.
    given = points(GPUS, cpu=lambda _: 60_000, gpu=lambda _: 100_000)
    (found,) = find_sweep_crossovers(given, [GPUS])
    assert isinstance(found.outcome, Crossover)
    assert found.outcome.value == 2
    # As an axis that is held, it counts likewise.
    both = points(BATCH, GPUS, cpu=lambda s: 1_000 * size(s), gpu=lambda _: 100_000)
    along = [c for c in find_sweep_crossovers(both, [BATCH, GPUS]) if "num_devices" in c.held]
    values = [c.outcome.value for c in along]  # type: ignore[union-attr]
    assert values == pytest.approx([101, 51, 26], abs=2)


def test_sizes_that_do_not_fit_are_not_won() -> None:
    given = points(
        BATCH, cpu=lambda s: 1_000 * size(s), gpu=lambda _: 100_000, fits=lambda s: size(s) < 1_024
    )
    (found,) = find_sweep_crossovers(given, [BATCH])
    assert isinstance(found.outcome, Crossover)
    assert found.outcome.searched == (16, 256)
    never = points(
        BATCH, cpu=lambda s: 1_000 * size(s), gpu=lambda _: 100_000, fits=lambda _: False
    )
    (found,) = find_sweep_crossovers(never, [BATCH])
    assert isinstance(found.outcome, NoCrossover)
    assert "does not fit" in found.outcome.none_because


def test_number_of_parameters_is_an_axis_where_an_argument_changes_it() -> None:
    width = axis("width", 64, 16, 256)
    given = points(
        width, cpu=lambda s: size(s, "width") ** 2, gpu=lambda _: 10_000,
        parameters=lambda s: int(size(s, "width") ** 2),
    )  # fmt: skip
    along = {c.outcome.axis: c.outcome for c in find_sweep_crossovers(given, [width])}
    assert along.keys() == {"width", NUM_PARAMETERS}
    found = along[NUM_PARAMETERS]
    assert isinstance(found, Crossover)
    assert found.searched == (256, 65_536)
    assert found.low <= 10_000 <= (found.high or 0)
    curves = sweep_curves(given, [width], NUM_PARAMETERS)
    assert [[point.size for point in curve.points] for curve in curves] == [
        [256, 4_096, 65_536]
    ] * 2


def test_words_that_change_the_model_are_ordered_by_its_parameters() -> None:
    sizes = {"small": 1_000, "base": 10_000, "large": 100_000}
    model = axis("model", "large", "small", "base")
    given = points(
        model, cpu=lambda s: sizes[str(s["model"])], gpu=lambda _: 30_000,
        parameters=lambda s: sizes[str(s["model"])],
    )  # fmt: skip
    (found,) = find_sweep_crossovers(given, [model])
    assert isinstance(found.outcome, Crossover)
    assert found.outcome.axis == NUM_PARAMETERS
    assert found.outcome.low <= 30_000 <= (found.outcome.high or 0)


def test_an_argument_that_changes_no_parameters_is_no_axis_of_them() -> None:
    given = points(BATCH, axis("act", "relu", "tanh"), cpu=lambda s: size(s), gpu=lambda _: 10.0)
    axes = [BATCH, axis("act", "relu", "tanh")]
    assert sweep_curves(given, axes, NUM_PARAMETERS) == ()
    assert {c.outcome.axis for c in find_sweep_crossovers(given, axes)} == {"batch_size"}


def test_curves_are_there_once_where_an_axis_changes_nothing() -> None:
    axes = [BATCH, THREADS, GPUS]
    given = points(*axes, cpu=lambda s: size(s), gpu=lambda s: 10.0)
    curves = sweep_curves(given, axes, "batch_size")
    cpus = [curve for curve in curves if curve.kind is DeviceKind.CPU]
    gpus = [curve for curve in curves if curve.kind is DeviceKind.GPU]
    assert [curve.held for curve in cpus] == [{"threads": 1}, {"threads": 2}]
    assert [curve.held for curve in gpus] == [{"num_devices": n} for n in (1, 2, 4)]
    assert all(len(curve.points) == 4 for curve in curves)
    (cpu, *_) = sweep_curves(given, axes, "threads")
    assert (cpu.device, [point.size for point in cpu.points]) == ("A CPU", [1, 2])


@pytest.mark.parametrize("name", ["width", "act"])
def test_curve_along_what_is_no_axis_of_numbers_is_refused(name: str) -> None:
    axes = [axis("act", "relu", "tanh")]
    with pytest.raises(ValueError, match=name):
        sweep_curves(points(*axes, cpu=lambda _: 1.0, gpu=lambda _: 1.0), axes, name)


def test_missing_points_leave_the_others() -> None:
    given = points(BATCH, cpu=lambda s: 1_000 * size(s), gpu=lambda _: 100_000)
    without = [p for p in given if p.settings["batch_size"] != 64]
    (found,) = find_sweep_crossovers(without, [BATCH])
    assert isinstance(found.outcome, Crossover)
    only_gpu = [p for p in given if p.kind is DeviceKind.GPU]
    assert find_sweep_crossovers(only_gpu, [BATCH]) == ()
    assert find_sweep_crossovers([], [BATCH]) == ()
