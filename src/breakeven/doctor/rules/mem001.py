"""MEM001: the step needs more memory than the device has.

What it does:
    Compares the largest memory in use within a step (parameters, gradients, states of the
    optimizer, activations, and half a gigabyte for CUDA) with that of the device.

Why it costs time:
    The step stops with "CUDA out of memory".

Evidence:
    Tensors of the device that were alive at the same time in the recorded step.

Fix:
    The largest batch that fits, with gradients accumulated over several of them; mixed
    precision; ``torch.utils.checkpoint`` for the layers with the largest activations; a device
    with more memory.

    ```python
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    ```

    ```python
    for part in batch.chunk(4):
        loss = model(part).mean() / 4
        loss.backward()
    optimizer.step()
    ```

Known limits:
    What the allocator loses to fragments and what libraries allocate for themselves is not
    counted. The batch that fits is known only where the step was traced at two sizes.
"""

from __future__ import annotations

import math

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.units import format_bytes

CAUSE = "MEMORY_FULL"


def detect(case: Case) -> Found:
    if case.prediction.fits:
        return
    largest = _largest_batch(case)
    if largest is None:
        fix = "a smaller batch, mixed precision or torch.utils.checkpoint"
    elif largest:
        fix = f"a batch of {largest} samples at most, gradients accumulated over several"
    else:
        fix = "not even one sample fits: mixed precision, torch.utils.checkpoint, or a device "
        fix += "with more memory"
    yield Occurrence(
        title=f"the step needs {format_bytes(case.prediction.peak_memory_bytes)} of memory, "
        f"{case.device.name} has {format_bytes(case.device.memory_bytes)}",
        fix=fix,
        evidence="the largest sum of tensors that are alive at once, and CUDA's own memory",
        share_fraction=0.0,
        is_error=True,
    )


def _largest_batch(case: Case) -> int | None:
    """Return the largest batch that fits, 0 where none does, None where it is not known."""
    if case.scaled is None:
        return None
    first, second = case.scaled.first, case.scaled.second
    assert first.batch_size is not None
    assert second.batch_size is not None
    context_bytes = case.prediction.peak_memory_bytes - case.trace.peak_memory_bytes
    room_bytes = case.device.memory_bytes - context_bytes - first.peak_memory_bytes
    slope = (second.peak_memory_bytes - first.peak_memory_bytes) / (
        second.batch_size - first.batch_size
    )
    # Where memory does not grow with the batch, no batch makes the step fit.
    return max(0, math.floor(first.batch_size + room_bytes / slope)) if slope > 0 else 0
