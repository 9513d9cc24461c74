from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.errors import ScriptError
from breakeven.studies.recorded_grid import Step, scale_knob, steps_along
from breakeven.trace import HostWork, Op, StepTrace, TensorSpec
from breakeven.verdict import AxisRole, AxisValue, SweepAxis

CUDA = "cuda:0"


def spec(*shape: int, storage: int = -1) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device=CUDA, storage=storage)


def linear_step(width: int, batch_size: int = 16, start: int = 0) -> StepTrace:
    """A linear layer from 8 to ``width``, and one from there to itself."""
    batch, one, other = spec(batch_size, 8, storage=1), spec(8, width, storage=2), spec(width)
    hidden = spec(batch_size, width, storage=3)
    square = spec(width, width, storage=4)
    return StepTrace(
        events=(
            HostWork(kind="script", duration_ns=1_000 + 7 * start),
            Op(name="aten.slice.Tensor", inputs=(batch,), outputs=(batch,),
               attributes={"start": start, "end": start + batch_size}),
            Op(name="aten.addmm.default", inputs=(other, batch, one), outputs=(hidden,)),
            Op(name="aten.mm.default", inputs=(hidden, square), outputs=(spec(batch_size, width),)),
        ),
        batch_size=batch_size,
        num_parameters=8 * width + width * width + width,
        peak_memory_bytes=4 * (8 * width + width * width + batch_size * width),
    )  # fmt: skip


def shapes(trace: StepTrace) -> list[object]:
    return [
        [tensor.shape for tensor in (*op.inputs, *op.outputs)]
        for op in trace.ops
    ]  # fmt: skip


def test_three_widths_tell_all_others_exactly() -> None:
    traced = {width: linear_step(width, start=width) for width in (16, 64, 256)}
    scaling = scale_knob(traced, range(16, 257, 8))
    assert scaling is not None
    for width in range(16, 257, 8):
        told, true = scaling(width), linear_step(width)
        assert shapes(told) == shapes(true)
        assert told.num_parameters == true.num_parameters
        assert told.batch_size == 16
        # Weights grow with the square of the width.
        assert told.peak_memory_bytes == true.peak_memory_bytes


def test_knob_may_be_zero_or_negative() -> None:
    traced = {value: linear_step(16 + 2 * value) for value in (-4, 0, 8)}
    scaling = scale_knob(traced, range(-4, 9))
    assert scaling is not None
    assert scaling(3).num_parameters == linear_step(22).num_parameters


def test_another_step_at_the_third_value_cannot_be_scaled() -> None:
    traced = {width: linear_step(width) for width in (16, 64, 256)}
    traced[64] = linear_step(65)
    assert scale_knob(traced, (16, 32, 64, 256)) is None


def test_sizes_that_would_not_be_whole_cannot_be_scaled() -> None:
    # Half of the value: regular at even values alone.
    traced = {value: linear_step(value // 2) for value in (16, 64, 256)}
    assert scale_knob(traced, range(16, 257, 2)) is not None
    assert scale_knob(traced, range(16, 257)) is None


def test_parameters_that_no_forward_pass_reads_must_not_grow() -> None:
    def with_unused(width: int, unused: int) -> StepTrace:
        step = linear_step(width)
        return StepTrace(
            events=step.events,
            batch_size=step.batch_size,
            num_parameters=step.num_parameters + unused,
            peak_memory_bytes=step.peak_memory_bytes,
        )

    constant = {width: with_unused(width, 1_000) for width in (16, 64, 256)}
    scaling = scale_knob(constant, (16, 32, 64, 256))
    assert scaling is not None
    assert scaling(32).num_parameters == linear_step(32).num_parameters + 1_000
    growing = {width: with_unused(width, width) for width in (16, 64, 256)}
    assert scale_knob(growing, (16, 32, 64, 256)) is None


def test_pauses_of_a_busy_machine_are_not_taken_for_work() -> None:
    def paused(trace: StepTrace) -> StepTrace:
        pause = HostWork(kind="script", duration_ns=5_000_000)
        return replace(trace, events=(*trace.events, pause))

    traced = {width: linear_step(width) for width in (16, 64, 256)}
    traced[256] = paused(traced[256])
    scaling = scale_knob(traced, (16, 32, 64, 256))
    assert scaling is not None
    for width in (16, 32, 64, 256):
        works = [event for event in scaling(width).events if isinstance(event, HostWork)]
        assert [work.duration_ns for work in works] == [1_000]
    # What is there each time is the script's own work.
    always = scale_knob({width: paused(linear_step(width)) for width in traced}, (16, 32))
    assert always is not None
    total = sum(e.duration_ns for e in always(32).events if isinstance(e, HostWork))
    assert total == 5_001_000


def axis(*values: AxisValue, name: str = "n") -> SweepAxis:
    return SweepAxis(name=name, role=AxisRole.ARGUMENT, values=values)


class Recorder:
    def __init__(self, step: object) -> None:
        self.recorded: list[AxisValue] = []
        self._step = step
        self._done: dict[AxisValue, Step] = {}

    def __call__(self, value: AxisValue) -> Step:
        if value not in self._done:
            self.recorded.append(value)
            self._done[value] = self._step(value)  # type: ignore[operator]
        return self._done[value]


def test_regular_axis_is_recorded_three_times() -> None:
    recorder = Recorder(linear_step)
    steps, _ = steps_along(axis(*range(16, 1_025, 8)), recorder)
    assert sorted(recorder.recorded) == [16, 128, 1_024]
    assert all(
        isinstance(step, StepTrace) and step.num_parameters == linear_step(width).num_parameters
        for width, step in steps.items()
        if isinstance(width, int)
    )


def test_axis_with_a_kink_is_recorded_at_each_value() -> None:
    def kinked(width: int) -> StepTrace:
        return linear_step(min(width, 200))

    recorder = Recorder(kinked)
    values = range(100, 501, 50)
    steps, _ = steps_along(axis(*values), recorder)
    assert set(recorder.recorded) == set(values)
    for width in values:
        step = steps[width]
        assert isinstance(step, StepTrace)
        assert shapes(step) == shapes(kinked(width))


@pytest.mark.parametrize("values", [("a", "b", "c", "d"), (1, 2, "c", 4), (1, 2, 3)])
def test_few_values_and_words_are_each_recorded(values: tuple[AxisValue, ...]) -> None:
    recorder = Recorder(lambda _: linear_step(16))
    steps_along(axis(*values), recorder)
    assert sorted(map(str, recorder.recorded)) == sorted(map(str, values))


def test_failure_at_a_value_is_told_of_that_value_alone() -> None:
    def fails_from_100(width: int) -> Step:
        return ScriptError(f"no {width}") if width >= 100 else linear_step(width)

    steps, _ = steps_along(axis(16, 32, 64, 128, 256), Recorder(fails_from_100))
    assert [isinstance(step, StepTrace) for step in steps.values()] == [True] * 3 + [False] * 2
    assert "no 128" in str(steps[128])


def test_large_values_are_not_recorded_where_small_ones_tell() -> None:
    # 2^20 times the width is 2^40 times the work: hours.
    recorder = Recorder(linear_step)
    steps, _ = steps_along(axis(*(2**power for power in range(3, 24))), recorder)
    assert max(value for value in recorder.recorded if isinstance(value, int)) < 2**18
    assert steps[2**23].num_parameters == linear_step(2**23).num_parameters  # type: ignore[union-attr]


def test_batch_sizes_at_which_an_epoch_ends_are_told_from_smaller_ones() -> None:
    def step(batch_size: int) -> StepTrace:
        return linear_step(32, batch_size if batch_size < 300 else 1_000 - batch_size)

    recorder = Recorder(step)
    steps, differs_at = steps_along(axis(*range(10, 901, 10), name="batch_size"), recorder)
    assert differs_at is not None
    assert differs_at >= 300
    assert len(recorder.recorded) < 10
    assert all(found.batch_size == size for size, found in steps.items())  # type: ignore[union-attr]
