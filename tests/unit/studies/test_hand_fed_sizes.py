"""The step at batch sizes that nobody can set, from the one that was run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import TracedRun
from breakeven.cost import reference_host
from breakeven.device import DeviceSpec, find_device
from breakeven.simulate import predict_steps
from breakeven.studies.batch_sizes import SizeSearch, search_scaled_sizes
from breakeven.studies.comparison import compare_devices
from breakeven.studies.measured_step import measured_result, measured_step
from breakeven.timing import Source
from breakeven.trace import ModelCall, Phase, RunFacts, StepTrace, TensorSpec
from breakeven.verdict import DeviceKind, NoCrossover
from factories.runs import device_op, plain_run

GPU = find_device("T4")


def searched(
    batch_size: int | None, step_ns: float, gpu: DeviceSpec = GPU, *, num_batches: int = 1
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
    compared = compare_devices(step.program, (gpu,), reference_host(), results)
    return search_scaled_sizes(step, compared), trace


def test_curves_go_around_the_one_size_that_was_run():
    found, trace = searched(48, 5e4)
    cpu, gpu = found.curves
    around = [point.size for point in cpu.points]
    assert around == sorted({48, *(2**power for power in range(12))})
    assert [point.size for point in gpu.points] == around
    sources = {point.size: point.source for point in cpu.points}
    assert sources.pop(48) is Source.MEASURED
    assert set(sources.values()) == {Source.PREDICTED}
    # The curve of the GPU goes through the step as it was recorded.
    (as_recorded,) = predict_steps(trace, (GPU,), reference_host())
    own = next(point for point in gpu.points if point.size == 48)
    assert own.step_ns == as_recorded.estimate.value_ns
    (caveat,) = found.caveats
    assert caveat.code == "batch-sizes-predicted"
    assert "only a batch of 48 was run" in caveat.message


def test_what_is_predicted_of_the_cpu_is_less_certain_the_farther_it_is():
    cpu = searched(64, 5e4)[0].curves[0]
    widths = {point.size: point.high_ns / point.low_ns for point in cpu.points}
    assert widths[64] < widths[128] < widths[1024]
    assert widths[64] < widths[32] < widths[4]


def test_each_batch_whose_gradients_are_accumulated_keeps_a_sample():
    cpu = searched(3, 5e4, num_batches=8)[0].curves[0]
    assert [point.size for point in cpu.points][:3] == [8, 16, 24]


def test_sizes_that_do_not_fit_the_gpu_are_left_out():
    small = replace(GPU, memory_bytes=0)
    cpu = searched(64, 5e4, small)[0].curves[0]
    assert max(point.size for point in cpu.points) == 64


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_batch_that_cannot_be_told_gives_a_reason_and_no_option(batch_size: int | None):
    found, _ = searched(batch_size, 5e4)
    crossover = found.crossover
    assert isinstance(crossover, NoCrossover)
    assert crossover.axis == "batch_size"
    assert crossover.none_because.startswith("The script feeds its batches by hand")
    assert "cannot be scaled: " in crossover.none_because
    assert "--batch-size N" not in crossover.none_because
    assert (found.curves, found.caveats) == ((), ())
