"""Which family of kernels stands in for which, where no table times one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from breakeven.cost.implementations import is_in_one_kernel
from breakeven.cost.kernel import Family, Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What stands in for a family, or one of its variants, without tables of its own.

    Args:
        family: What stands in.
        factor: Share of what that one reaches.
        log_sigma: Standard deviation of the logarithm of the factor.
        variant: Of the family that stands in.
    """

    family: Family
    factor: float
    log_sigma: float
    variant: str = ""


# Each is set beside the family whose limit it shares. The factors are judgement, not calibration,
# and the uncertainty says so.
PROXIES = {
    # cuDNN computes each channel by itself, without a matrix product: traffic decides.
    (Family.CONVOLUTION, "depthwise"): Proxy(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50),
    # What a time step waits for is that of one layer on one GPU, see `implementations`; the rest is
    # as of other layers.
    (Family.RECURRENT, "small"): Proxy(family=Family.RECURRENT, factor=1.0, log_sigma=0.40),
    (Family.BATCHED_GEMM, ""): Proxy(family=Family.GEMM, factor=0.9, log_sigma=0.20),
    (Family.CONVOLUTION, ""): Proxy(family=Family.GEMM, factor=0.8, log_sigma=0.35),
    (Family.RECURRENT, ""): Proxy(family=Family.GEMM, factor=0.7, log_sigma=0.40),
    (Family.ATTENTION, ""): Proxy(family=Family.BATCHED_GEMM, factor=0.7, log_sigma=0.40),
    (Family.LINALG, ""): Proxy(family=Family.GEMM, factor=0.1, log_sigma=1.00),
    (Family.NORMALIZATION, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    (Family.SOFTMAX, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    (Family.REDUCTION, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.25),
    (Family.POOLING, ""): Proxy(family=Family.ELEMENTWISE, factor=0.7, log_sigma=0.35),
    (Family.GATHER, ""): Proxy(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50),
    (Family.SORT, ""): Proxy(family=Family.ELEMENTWISE, factor=0.1, log_sigma=0.80),
}

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


def calibrated_variant(family: Family, variant: str) -> str:
    """Return the key under which rows of ``variant`` are pooled.

    Recurrent layers of all kinds take their steps alike, and no kind has many rows. What Winograd
    gains is in the algorithms of a convolution; tiles and rates are those of the others, as they
    are for the products of groups.
    """
    if family is Family.RECURRENT:
        return "backward" if variant.endswith("backward") else ""
    if family is Family.CONVOLUTION:
        return variant.removeprefix("winograd").removeprefix("grouped").removeprefix("_")
    return variant


def stand_ins(family: Family, variant: str) -> Iterator[Proxy]:
    """Yield what may stand in for kernels of a family, the nearest first: that family itself."""
    factor, variance = 1.0, 0.0
    if family is Family.CONVOLUTION and variant.startswith("depthwise"):
        proxy, variant = PROXIES[family, "depthwise"], ""
        family, factor, variance = proxy.family, proxy.factor, proxy.log_sigma**2
    elif is_in_one_kernel(variant):
        variance = PROXIES[Family.RECURRENT, "small"].log_sigma ** 2
    variant = calibrated_variant(family, variant)
    while True:
        # A transposed convolution is the gradient of the input of another one.
        direct = variant.replace("transposed", "backward_input")
        for near in dict.fromkeys((variant, direct, "")):
            yield Proxy(family=family, variant=near, factor=factor, log_sigma=variance**0.5)
        proxy, variant = PROXIES.get((family, "")), ""
        if proxy is None:
            return
        family, factor = proxy.family, factor * proxy.factor
        variance += proxy.log_sigma**2
