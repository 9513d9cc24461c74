"""Families of kernels that nobody timed, each beside a family whose limit it shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.cost.kernel import Family, Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """A family that stands in for one without tables of its own.

    Args:
        family: What stands in.
        factor: Share of what that one reaches.
        log_sigma: Standard deviation of the logarithm of the factor.
    """

    family: Family
    factor: float
    log_sigma: float


# No table times these families; each is set beside the family whose limit it shares. The factors
# are judgement, not calibration, and the uncertainty says so.
RELATIVES = {
    Family.BATCHED_GEMM: Relative(family=Family.GEMM, factor=0.9, log_sigma=0.20),
    Family.CONVOLUTION: Relative(family=Family.GEMM, factor=0.8, log_sigma=0.35),
    Family.RECURRENT: Relative(family=Family.GEMM, factor=0.7, log_sigma=0.40),
    Family.ATTENTION: Relative(family=Family.BATCHED_GEMM, factor=0.7, log_sigma=0.40),
    Family.LINALG: Relative(family=Family.GEMM, factor=0.1, log_sigma=1.00),
    Family.NORMALIZATION: Relative(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    Family.SOFTMAX: Relative(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    Family.REDUCTION: Relative(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.25),
    Family.POOLING: Relative(family=Family.ELEMENTWISE, factor=0.7, log_sigma=0.35),
    Family.GATHER: Relative(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50),
    Family.SORT: Relative(family=Family.ELEMENTWISE, factor=0.1, log_sigma=0.80),
}
# cuDNN computes each channel by itself, without a matrix product: traffic decides.
DEPTHWISE = Relative(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50)
# What a time step waits for is that of one layer on one GPU, see `breakeven.cost.small_recurrence`;
# the rest is as of other layers.
SMALL_RECURRENT = Relative(family=Family.RECURRENT, factor=1.0, log_sigma=0.40)

# What neither benchmarks of operators nor whole steps on any device tell: by family, or by variant.
_UNTIMED = {
    Family.LINALG: "factorizations and solves",
    Family.SORT: "sorting and selection",
    "scatter": "scattering",
    "sparse": "sparse products",
    "fft": "Fourier transforms",
    "ctc": "CTC losses",
    "group": "group norms",
}
# Three times as long or as short, at 90 %.
UNTIMED_LOG_SIGMA = math.log(3.0) / 1.645


def untimed_kind(kernel: Kernel) -> str:
    """Return what kind of work a kernel does that nobody timed; empty where times are known."""
    variant = kernel.variant.removesuffix("_backward")
    return _UNTIMED.get(kernel.family) or _UNTIMED.get(variant, "")
