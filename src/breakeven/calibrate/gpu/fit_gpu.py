"""Efficiencies of one GPU, by family and precision, from its own samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from breakeven.calibrate.fit import (
    TABLE_WARM_FRACTION,
    FamilyKey,
    TimedKernel,
    fit_family,
    without_others,
)
from breakeven.cost import (
    Family,
    GpuCalibration,
    Kernel,
    PrecisionEfficiency,
    StepEffect,
    arithmetic_of,
    calibrated_table,
    calibrated_variant,
    is_in_one_kernel,
    kernel_times,
    load_efficiencies,
    own_effect_keys,
    variant_on,
)
from breakeven.device import Precision

# So many sizes tell what tiles lose apart from what the units reach; of fewer, the other GPUs'
# losses stand.
_ROWS_FOR_TILES = 12
_LEAST_LOG_SIGMA = 0.05
# One GPU may be faster than its datasheet: boards hold higher clocks than they promise.
_HIGHEST = (3.0, 200.0, 1_000.0, 1.5)
# A fit that is off by more says nothing: what is known of other GPUs is nearer.
_MOST_ERROR = 0.5
_TILED = frozenset({Family.GEMM, Family.BATCHED_GEMM})


def fit_families(timed: Sequence[TimedKernel]) -> tuple[PrecisionEfficiency, ...]:
    """Return the efficiencies of the device that all samples are of.

    Args:
        timed: Samples.
    """
    base = load_efficiencies()
    groups: dict[tuple[FamilyKey, Precision], list[TimedKernel]] = defaultdict(list)
    for row in timed:
        alone = without_others(row, base)
        if alone is None or _has_factor(row.kernel):
            continue
        kernel = row.kernel
        variant = calibrated_variant(kernel.family, variant_on(kernel, row.device))
        key = (kernel.family, variant, arithmetic_of(kernel, row.device))
        groups[key, kernel.precision].append(alone)
    fitted: list[PrecisionEfficiency] = []
    for (key, precision), rows in groups.items():
        has_tiles = key[0] in _TILED and len(rows) >= _ROWS_FOR_TILES
        entry = fit_family(key, rows, None if has_tiles else base, highest=_HIGHEST)
        if entry.median_error_fraction > _MOST_ERROR:
            continue
        fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
        fields["log_sigma"] = max(entry.log_sigma, _LEAST_LOG_SIGMA)
        fitted.append(PrecisionEfficiency(**fields, precision=precision))
    return tuple(sorted(fitted, key=lambda one: (one.family, one.variant, one.precision)))


def fit_factors(
    timed: Sequence[TimedKernel], calibration: GpuCalibration
) -> tuple[StepEffect, ...]:
    """Return factors of kernels whose time no efficiency of their own says, or not all of it.

    Channel-wise convolutions are computed as streams are, small recurrent layers wait for the step
    before, and fused attention has its softmax beside what efficiencies scale.

    Args:
        timed: Samples of one device.
        calibration: Its efficiencies in other families.
    """
    base = load_efficiencies()
    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in timed:
        kernel = row.kernel
        if kernel.family is not Family.ATTENTION and not _has_factor(kernel):
            continue
        alone = without_others(row, base)
        if alone is None:
            continue
        table = calibrated_table(base, calibration, row.device, kernel.precision)
        predicted = kernel_times(
            [kernel], [row.device], efficiencies=table, warm_fraction=TABLE_WARM_FRACTION
        )
        key = own_effect_keys(kernel, row.device)[-1]
        ratios[key].append(float(np.log(alone.time_ns / predicted.time_ns[0, 0])))
    return tuple(
        StepEffect(kind=key[0], of=key[1:], log_factor=round(float(np.median(values)), 4))
        for key, values in sorted(ratios.items())
    )


def _has_factor(kernel: Kernel) -> bool:
    """Return whether a factor alone tells what was measured of such kernels."""
    return kernel.variant.startswith("depthwise") or is_in_one_kernel(kernel.variant)
