"""The largest batch of a step whose memory fits a GPU."""

from __future__ import annotations

from breakeven.device import DeviceSpec
from breakeven.simulate.predict import CONTEXT_BYTES
from breakeven.trace import ScaledTrace

# Batches beyond this are not searched: memory that hardly grows is not what limits them.
MOST_SAMPLES = 2**24


def largest_batch(scaled: ScaledTrace | None, device: DeviceSpec) -> int | None:
    """Return the largest batch that fits a GPU; 0 if not even one sample fits.

    Args:
        scaled: The step, recorded at two batch sizes.
        device: The GPU.

    Returns:
        None if the step was recorded at one size only, or if even `MOST_SAMPLES` samples fit.
    """
    if scaled is None:
        return None

    def fits(batch_size: int) -> bool:
        return scaled.peak_memory_bytes(batch_size) + CONTEXT_BYTES <= device.memory_bytes

    if fits(MOST_SAMPLES):
        return None
    fitting, failing = 0, MOST_SAMPLES
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        fitting, failing = (middle, failing) if fits(middle) else (fitting, middle)
    return fitting
