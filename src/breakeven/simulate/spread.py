"""How errors of single kernels add up to the error of a step.

One part of an error is shared by all kernels of a step: a device that reaches less of its
datasheet than its teachers, a library of another year. The other part belongs to a kernel's sizes,
for which the library has a better or a worse algorithm; such errors partly cancel in a step of
many different kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.simulate.plan import Array


def spread_in_step(
    time_ns: Array, log_sigma: Array, shared_log_sigma: Array, counts: Sequence[int]
) -> Array:
    """Return the spread of each kernel, as the sum over the step sees it.

    If every kernel is off by this many standard deviations in the same direction, their sum is off
    as it would be with the parts that are independent drawn one by one. Kernels of equal sizes err
    alike, so only different ones are independent of each other.

    Args:
        time_ns: Time of each different kernel, shaped (kernels, devices).
        log_sigma: Standard deviation of its logarithm, in the same shape.
        shared_log_sigma: The part of that which all kernels share.
        counts: How often each runs in the step.

    Returns:
        Standard deviations, in the same shape: from ``shared_log_sigma`` to ``log_sigma``.
    """
    own_variance = np.maximum(log_sigma**2 - shared_log_sigma**2, 0.0)
    deviations = time_ns * np.sqrt(own_variance) * np.array(counts, dtype=np.float64)[:, None]
    together = deviations.sum(axis=0) ** 2
    apart = (deviations**2).sum(axis=0)
    # Where nothing is independent the remaining part does not matter.
    remaining = np.divide(apart, together, out=np.ones_like(together), where=together > 0)
    return np.sqrt(shared_log_sigma**2 + own_variance * remaining)
