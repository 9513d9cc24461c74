"""Fit the efficiencies of a device per kernel family to timed kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from breakeven.cost import (
    TILE_SET_NAMES,
    Arithmetic,
    EfficiencyArrays,
    EfficiencyTable,
    Family,
    FamilyEfficiency,
    GpuCalibration,
    Kernel,
    KernelGroup,
    PrecisionEfficiency,
    StepEffect,
    TileSet,
    arithmetic_of,
    calibrated_table,
    calibrated_variant,
    group_key,
    is_in_one_kernel,
    kernel_times,
    load_efficiencies,
    own_effect_keys,
    transferred_efficiency,
    variant_on,
)
from breakeven.device import DeviceSpec, Precision

Floats = NDArray[np.float64]
FamilyKey = tuple[Family, str, Arithmetic]

# The tables repeat one operator on the same data, so the cache holds all of it that fits.
TABLE_WARM_FRACTION = 1.0

_TILED_FAMILIES = frozenset(
    {Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.RECURRENT}
)
# Traffic, not arithmetic, decides the other families; their rows cannot determine this value.
_FLAT_COMPUTE_FRACTION = 0.5

_PARAMETERS = ("compute_fraction", "tile_loss", "prologue_k", "memory_fraction")
_STARTS = ((0.8, 4.0, 16.0, 0.7), (0.5, 16.0, 64.0, 0.5))
# Loading a tile and filling the pipeline always costs something.
_LOW = (0.02, 1.0, 4.0, 0.05)
_HIGH = (1.0, 200.0, 1_000.0, 1.0)
# Recurrent layers read weights and states in long runs, which reach half of the bandwidth anywhere.
# Rows with small batches alone would trade bandwidth against the latency of a time step.
_LOW_OF = {Family.RECURRENT: (*_LOW[:3], 0.5)}
_FIRST_STEP = 0.8
# Try every set of tiles up to this step, and the best one to the last step.
_SKETCH_STEP = 0.3
_LAST_STEP = 0.01
# Smaller improvements of the mean |log(predicted / measured)| are ignored.
_LEAST_GAIN = 1e-5
# A handful of rows does not determine the spread over sizes.
_SPARSE_SIGMA = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """One measured kernel.

    Args:
        device: The device that ran it.
        kernel: Its work.
        time_ns: Its time, without the overheads of the measurement.
        source: The table and, if it names them, the libraries.
        others: Further kernels that ran within the time, before or after.
    """

    device: DeviceSpec
    kernel: Kernel
    time_ns: float
    source: str
    others: tuple[Kernel, ...] = ()


def without_others(row: TimedKernel, table: EfficiencyTable) -> TimedKernel | None:
    """Subtract the time of a row's other kernels, as ``table`` predicts it.

    The result is None if the others take most of the time: the rest would be their error.
    """
    if not row.others:
        return row
    others = kernel_times(
        row.others, [row.device], efficiencies=table, warm_fraction=TABLE_WARM_FRACTION
    )
    remaining_ns = row.time_ns - float(others.time_ns.sum())
    if remaining_ns <= row.time_ns / 2:
        return None
    return replace(row, time_ns=remaining_ns, others=())


@dataclass(frozen=True, slots=True)
class Quality:
    """Errors of predicted times against measured ones."""

    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float

    @classmethod
    def of(cls, log_ratio: Floats) -> Quality:
        """Compute the quality of predictions from log(predicted / measured)."""
        error = np.abs(np.expm1(log_ratio))
        # In a normal distribution, 90 % is within 1.645 standard deviations; a bias counts too.
        sigma = np.percentile(np.abs(log_ratio), 90) / 1.645
        return cls(float(np.median(error)), float(np.percentile(error, 90)), float(sigma))


def fit_family(
    key: FamilyKey,
    rows: Sequence[TimedKernel],
    references: EfficiencyTable | None,
    *,
    highest: tuple[float, float, float, float] = _HIGH,
) -> FamilyEfficiency:
    """Fit the efficiency of one device in one family to its measurements.

    Args:
        key: The family.
        rows: Its measurements.
        references: If given, their parameters are kept, except for the leading one and for the
            latency of recurrent layers.
        highest: Upper bounds of the parameters, in order.
    """
    family, variant, arithmetic = key
    device = rows[0].device
    predict = _predictor(rows)
    log_measured = np.log(measured_ns(rows))
    is_tiled = family in _TILED_FAMILIES
    lowest = _LOW_OF.get(family, _LOW)
    low, high = np.log(lowest), np.log(highest)

    def loss(parameters: Floats, tiles: TileSet) -> float:
        return float(np.mean(np.abs(np.log(predict(np.exp(parameters), tiles)) - log_measured)))

    tile_sets: tuple[TileSet, ...]
    if references is not None:
        transferred = transferred_efficiency(references, [device], *key).arrays
        values = [float(getattr(transferred, name)[0, 0]) for name in _PARAMETERS]
        start = np.log(np.maximum(values, lowest))  # attention has no loss from tiles
        # Small recurrent layers show their latency rather than their rate.
        tiled_free = (0, 2) if family is Family.RECURRENT else (0,)
        is_computed = is_tiled or family is Family.ATTENTION
        starts, free = (start,), tiled_free if is_computed else (3,)
        tile_sets = (TILE_SET_NAMES[transferred.tile_set[0, 0]],)
    elif is_tiled:
        starts, free = tuple(np.log(start) for start in _STARTS), (0, 1, 2, 3)
        tile_sets = TILE_SET_NAMES
    else:
        flat = np.log((_FLAT_COMPUTE_FRACTION, _LOW[1], _LOW[2], _STARTS[0][3]))
        starts, free = (flat,), (3,)
        tile_sets = ("8+",)
    sketched: list[tuple[Floats, TileSet]] = [
        (_descend(partial(loss, tiles=tiles), start, free, low, high, _SKETCH_STEP), tiles)
        for start in starts
        for tiles in tile_sets
    ]
    sketch, tiles = min(sketched, key=lambda candidate: loss(*candidate))
    best = _descend(partial(loss, tiles=tiles), sketch, free, low, high, _LAST_STEP)
    quality = Quality.of(np.log(predict(np.exp(best), tiles)) - log_measured)
    values = dict(zip(_PARAMETERS, (rounded(value) for value in np.exp(best)), strict=True))
    return FamilyEfficiency(
        family=family,
        variant=variant,
        arithmetic=arithmetic,
        num_rows=len(rows),
        median_error_fraction=rounded(quality.median_error_fraction),
        tiles=tiles,
        log_sigma=rounded(
            quality.log_sigma if references is None else max(_SPARSE_SIGMA, quality.log_sigma)
        ),
        **values,
    )


def _descend(
    loss: Callable[[Floats], float],
    start: Floats,
    free: Iterable[int],
    low: Floats,
    high: Floats,
    last_step: float,
) -> Floats:
    """Minimize by a pattern search: steps along each axis, halved when none improves."""
    best = np.clip(start, low, high)
    best_loss = loss(best)
    step = _FIRST_STEP
    while step > last_step:
        has_improved = False
        for axis in free:
            for sign in (1.0, -1.0):
                trial = best.copy()
                trial[axis] = np.clip(trial[axis] + sign * step, low[axis], high[axis])
                trial_loss = loss(trial)
                if trial_loss < best_loss - _LEAST_GAIN:
                    best, best_loss, has_improved = trial, trial_loss, True
                    break
        if not has_improved:
            step /= 2
    return best


def _predictor(rows: Sequence[TimedKernel]) -> Callable[[Floats, TileSet], Floats]:
    """Return a function from parameters to the predicted times of ``rows``, in order."""
    by_group: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_group[group_key(row.kernel)].append(index)
    groups = [
        (indices, KernelGroup([rows[index].kernel for index in indices], [rows[0].device]))
        for indices in by_group.values()
    ]

    def predict(parameters: Floats, tiles: TileSet) -> Floats:
        compute, tile_loss, prologue_k, memory = (np.full((1, 1), value) for value in parameters)
        arrays = EfficiencyArrays(
            compute_fraction=compute,
            tile_loss=tile_loss,
            prologue_k=prologue_k,
            tile_set=np.full((1, 1), TILE_SET_NAMES.index(tiles)),
            memory_fraction=memory,
        )
        predicted = np.empty(len(rows))
        for indices, group in groups:
            time_ns, _, _ = group.times(arrays, warm_fraction=TABLE_WARM_FRACTION)
            predicted[indices] = time_ns[:, 0]
        return predicted

    return predict


def measured_ns(rows: Sequence[TimedKernel]) -> Floats:
    """Return the times of ``rows``, in nanoseconds."""
    return np.array([row.time_ns for row in rows])


def rounded(value: float) -> float:
    """Round a value to the digits that the table keeps."""
    return float(f"{value:.4g}")


# This many sizes separate the loss from tiles from the rate of the units; with fewer, use the
# losses of other GPUs.
_ROWS_FOR_TILES = 12
_LEAST_LOG_SIGMA = 0.05
# One GPU may exceed its datasheet: boards sustain higher clocks than specified.
_HIGHEST = (3.0, 200.0, 1_000.0, 1.5)
# Drop a fit with a larger error: other GPUs' efficiencies are closer.
_MOST_ERROR = 0.5
_TILED = frozenset({Family.GEMM, Family.BATCHED_GEMM})


def fit_families(timed: Sequence[TimedKernel]) -> tuple[PrecisionEfficiency, ...]:
    """Fit the efficiencies of the device to all its samples.

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
    """Fit factors for kernels whose time their efficiency does not cover, or only in part.

    Channel-wise convolutions run at the rate of streams. Small recurrent layers wait for the
    previous step. Fused attention has a softmax that efficiencies do not scale.

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
    """Return whether only a factor describes the measurements of such kernels."""
    return kernel.variant.startswith("depthwise") or is_in_one_kernel(kernel.variant)


def summed(kernels: Sequence[Kernel]) -> Kernel:
    """Merge kernels of one family, variant and precision into one."""
    return Kernel(
        family=kernels[0].family,
        variant=kernels[0].variant,
        precision=kernels[0].precision,
        flop=sum(kernel.flop for kernel in kernels),
        read_bytes=sum(kernel.read_bytes for kernel in kernels),
        write_bytes=sum(kernel.write_bytes for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
    )
