"""The largest batch that fits a GPU."""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.device import find_device
from breakeven.simulate import largest_batch
from breakeven.simulate.predict import CONTEXT_BYTES
from breakeven.trace import ScaledTrace, StepTrace
from factories.steps import op, tensor

GPU = find_device("A40")


def scaled(bytes_per_sample: int, kept_bytes: int = 0) -> ScaledTrace:
    def step(size: int) -> StepTrace:
        rows = tensor(size, 1, device="cuda:0")
        return StepTrace(
            events=(op(0, inputs=(rows,), outputs=(rows,)),),
            batch_size=size,
            peak_memory_bytes=kept_bytes + size * bytes_per_sample,
        )

    return ScaledTrace(step(2), step(4))


def test_it_fits_and_one_sample_more_does_not() -> None:
    step = scaled(1_000_000, 10**9)

    batch_size = largest_batch(step, GPU)

    assert batch_size == (GPU.memory_bytes - CONTEXT_BYTES - 10**9) // 1_000_000
    assert step.peak_memory_bytes(batch_size) + CONTEXT_BYTES <= GPU.memory_bytes
    assert step.peak_memory_bytes(batch_size + 1) + CONTEXT_BYTES > GPU.memory_bytes


def test_zero_if_not_even_one_sample_fits() -> None:
    assert largest_batch(scaled(10**12), GPU) == 0


def test_none_if_one_size_was_recorded_or_memory_is_no_limit() -> None:
    assert largest_batch(None, GPU) is None
    assert largest_batch(scaled(1), GPU) is None


def test_a_step_that_never_fits_has_no_batch() -> None:
    assert largest_batch(scaled(0, 10**12), GPU) == 0
    small = replace(GPU, memory_bytes=float(CONTEXT_BYTES))
    assert largest_batch(scaled(1000), small) == 0
