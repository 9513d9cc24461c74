"""Efficiencies fitted to timed kernels, device by device and family by family."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from breakeven.calibrate._tables import TimedKernel
from breakeven.cost import (
    TABLE_VERSION,
    Arithmetic,
    DeviceEfficiency,
    EfficiencyArrays,
    EfficiencyTable,
    Family,
    FamilyEfficiency,
    HeldOutError,
    KernelGroup,
    arithmetic_of,
    calibrated_variant,
    group_key,
    is_taught_by_other_lines,
    kernel_times,
    sustained_fraction,
    taught_efficiency,
)
from breakeven.device import DeviceSpec

Floats = NDArray[np.float64]
FamilyKey = tuple[Family, str, Arithmetic]

# The tables repeat the same operator on the same data: what fits the cache is in the cache.
_TABLE_WARM_FRACTION = 1.0
# Fewer rows than this cannot tell four parameters apart: then only the leading one is fitted.
_MIN_ROWS = 28

_TILED_FAMILIES = frozenset(
    {Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.RECURRENT}
)
# Winograd F(2 x 2, 3 x 3) needs 16 multiplications where the direct convolution needs 36.
# Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
_WINOGRAD_GAIN = 2.25
# Traffic, not arithmetic, decides the other families; their rows cannot tell this value.
_FLAT_COMPUTE_FRACTION = 0.5

_PARAMETERS = ("compute_fraction", "tile_loss", "prologue_k", "memory_fraction")
_STARTS = ((0.8, 4.0, 16.0, 0.7), (0.5, 16.0, 64.0, 0.5))
# Searched by trying each; libraries ship few kernels for odd cases, such as batched products.
_SMALLEST_TILES = (8, 32, 64, 128)
# Loading a tile and filling the pipeline always costs something.
_LOW = (0.02, 1.0, 4.0, 0.05)
_HIGH = (1.0, 200.0, 1_000.0, 1.0)
_FIRST_STEP = 0.8
_LAST_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Quality:
    """How predicted times compare with measured ones."""

    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float

    @classmethod
    def of(cls, log_ratio: Floats) -> Quality:
        """Return the quality of predictions, given log(predicted / measured)."""
        error = np.abs(np.expm1(log_ratio))
        # Of a normal distribution, 90 % lie within 1.645 standard deviations; a bias counts too.
        sigma = np.percentile(np.abs(log_ratio), 90) / 1.645
        return cls(float(np.median(error)), float(np.percentile(error, 90)), float(sigma))


def fit_table(timed: Sequence[TimedKernel], provenance: str) -> EfficiencyTable:
    """Return the efficiencies of every device with rows, and the leave-one-chip-out errors."""
    alone = [row for row in timed if not row.others]
    shared = [row for row in timed if row.others]
    if shared:
        families = {kernel.family for row in shared for kernel in row.others}
        known = [row for row in alone if row.kernel.family in families]
        timed = [*alone, *_without_others(shared, _fit_devices(known, provenance))]
    table = _fit_devices(timed, provenance)
    return msgspec.structs.replace(table, held_out=held_out_errors(table, timed))


def _without_others(rows: Sequence[TimedKernel], table: EfficiencyTable) -> Iterator[TimedKernel]:
    """Yield ``rows`` without the time of their other kernels, as ``table`` predicts it.

    Rows of which the others take most are left out: what remains would be their error.
    """
    for row in rows:
        others = kernel_times(
            row.others, [row.device], efficiencies=table, warm_fraction=_TABLE_WARM_FRACTION
        )
        remaining_ns = row.time_ns - float(others.time_ns.sum())
        if remaining_ns > row.time_ns / 2:
            yield replace(row, time_ns=remaining_ns, others=())


def held_out_errors(
    table: EfficiencyTable, timed: Sequence[TimedKernel]
) -> tuple[HeldOutError, ...]:
    """Return the errors on each device when the others teach it, pooled by family.

    Devices with the same chip are left out together, since they would give the answer away.
    """
    ratios: dict[tuple[FamilyKey, bool], list[Floats]] = defaultdict(list)
    for device, rows in _by_device(timed).items():
        spec = rows[0].device
        siblings = {row.device.id for row in timed if _has_same_chip(row.device, spec)}
        others = msgspec.structs.replace(
            table, devices=tuple(item for item in table.devices if item.device not in siblings)
        )
        assert device in siblings
        taught = {
            (entry.family, entry.variant, entry.arithmetic)
            for item in others.devices
            for entry in item.families
        }
        for key, members in _by_family(rows).items():
            # With few rows chance decides; with no teacher but a relative there is no answer.
            if len(members) < _MIN_ROWS or key not in taught:
                continue
            is_other_line = is_taught_by_other_lines(others, spec, *key)
            predicted = kernel_times(
                [row.kernel for row in members],
                [spec],
                efficiencies=others,
                warm_fraction=_TABLE_WARM_FRACTION,
            ).time_ns[:, 0]
            ratios[key, is_other_line].append(np.log(predicted / _time_ns(members)))
    errors: list[HeldOutError] = []
    for ((family, variant, arithmetic), is_other_line), parts in ratios.items():
        pooled = np.concatenate(parts)
        quality = Quality.of(pooled)
        errors.append(
            HeldOutError(
                family=family,
                variant=variant,
                arithmetic=arithmetic,
                is_other_line=is_other_line,
                num_devices=len(parts),
                num_rows=len(pooled),
                median_error_fraction=_rounded(quality.median_error_fraction),
                p90_error_fraction=_rounded(quality.p90_error_fraction),
                log_sigma=_rounded(quality.log_sigma),
            )
        )
    return tuple(sorted(errors, key=lambda error: (error.family, error.arithmetic, error.variant)))


def _fit_devices(timed: Sequence[TimedKernel], provenance: str) -> EfficiencyTable:
    fitted: dict[str, list[FamilyEfficiency]] = defaultdict(list)
    sparse: list[tuple[str, FamilyKey, list[TimedKernel]]] = []
    devices = _by_device(timed)
    for device, rows in devices.items():
        for key, members in _by_family(rows).items():
            if len(members) >= _MIN_ROWS:
                fitted[device].append(_fit_family(key, members, None))
            else:
                sparse.append((device, key, members))

    def as_table() -> EfficiencyTable:
        return EfficiencyTable(
            version=TABLE_VERSION,
            provenance=provenance,
            devices=tuple(
                DeviceEfficiency(
                    device=device,
                    chip=rows[0].device.chip,
                    launch_generation=rows[0].device.launch_generation,
                    sustained_fraction=_rounded(sustained_fraction(rows[0].device)),
                    families=tuple(fitted[device]),
                    source="; ".join(sorted({row.source for row in rows})),
                )
                for device, rows in devices.items()
                if fitted[device]
            ),
            held_out=(),
        )

    full = as_table()
    for device, key, members in sparse:
        fitted[device].append(_fit_family(key, members, full))
    return as_table()


def _fit_family(
    key: FamilyKey, rows: Sequence[TimedKernel], teachers: EfficiencyTable | None
) -> FamilyEfficiency:
    """Fit one family of one device.

    Args:
        key: The family.
        rows: Its measurements.
        teachers: When given, their parameters are kept but for the leading one.
    """
    family, variant, arithmetic = key
    device = rows[0].device
    predict = _predictor(rows)
    log_measured = np.log(_time_ns(rows))
    is_tiled = family in _TILED_FAMILIES
    high = np.log(_HIGH)
    if "winograd" in variant and arithmetic == "vector":
        high[0] = np.log(_WINOGRAD_GAIN)

    def loss(parameters: Floats, tile: float) -> float:
        return float(np.mean(np.abs(np.log(predict(np.exp(parameters), tile)) - log_measured)))

    if teachers is not None:
        taught = taught_efficiency(teachers, [device], *key).arrays
        start = np.log([float(getattr(taught, name)[0, 0]) for name in _PARAMETERS])
        starts, free = (start,), (0,) if is_tiled else (3,)
        tiles: tuple[float, ...] = (float(taught.smallest_tile[0, 0]),)
    elif is_tiled:
        starts, free = tuple(np.log(start) for start in _STARTS), (0, 1, 2, 3)
        tiles = _SMALLEST_TILES
    else:
        flat = np.log((_FLAT_COMPUTE_FRACTION, _LOW[1], _LOW[2], 0.7))
        starts, free, tiles = (flat,), (3,), (_SMALLEST_TILES[0],)
    found = [
        (_descend(partial(loss, tile=tile), start, free, np.log(_LOW), high), tile)
        for start in starts
        for tile in tiles
    ]
    best, tile = min(found, key=lambda candidate: loss(*candidate))
    quality = Quality.of(np.log(predict(np.exp(best), tile)) - log_measured)
    values = dict(zip(_PARAMETERS, (_rounded(value) for value in np.exp(best)), strict=True))
    return FamilyEfficiency(
        family=family,
        variant=variant,
        arithmetic=arithmetic,
        num_rows=len(rows),
        median_error_fraction=_rounded(quality.median_error_fraction),
        # A handful of rows says nothing of the spread over sizes.
        smallest_tile=_rounded(tile),
        log_sigma=_rounded(quality.log_sigma if teachers is None else max(0.2, quality.log_sigma)),
        **values,
    )


def _descend(
    loss: Callable[[Floats], float],
    start: Floats,
    free: Iterable[int],
    low: Floats,
    high: Floats,
) -> Floats:
    """Return the parameters that a pattern search finds: steps along each axis, halved in turn."""
    best, best_loss = np.clip(start, low, high), np.inf
    best_loss = loss(best)
    step = _FIRST_STEP
    while step > _LAST_STEP:
        has_improved = False
        for axis in free:
            for sign in (1.0, -1.0):
                trial = best.copy()
                trial[axis] = np.clip(trial[axis] + sign * step, low[axis], high[axis])
                trial_loss = loss(trial)
                if trial_loss < best_loss - 1e-5:
                    best, best_loss, has_improved = trial, trial_loss, True
                    break
        if not has_improved:
            step /= 2
    return best


def _predictor(rows: Sequence[TimedKernel]) -> Callable[[Floats, float], Floats]:
    """Return a function from parameters to the predicted times of ``rows``, in their order."""
    by_group: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_group[group_key(row.kernel)].append(index)
    groups = [
        (indices, KernelGroup([rows[index].kernel for index in indices], [rows[0].device]))
        for indices in by_group.values()
    ]

    def predict(parameters: Floats, tile: float) -> Floats:
        compute, tile_loss, prologue_k, memory = (np.full((1, 1), value) for value in parameters)
        arrays = EfficiencyArrays(
            compute_fraction=compute,
            tile_loss=tile_loss,
            prologue_k=prologue_k,
            smallest_tile=np.full((1, 1), float(tile)),
            memory_fraction=memory,
        )
        predicted = np.empty(len(rows))
        for indices, group in groups:
            time_ns, _ = group.times(arrays, warm_fraction=_TABLE_WARM_FRACTION)
            predicted[indices] = time_ns[:, 0]
        return predicted

    return predict


def _by_device(timed: Iterable[TimedKernel]) -> dict[str, list[TimedKernel]]:
    groups: dict[str, list[TimedKernel]] = defaultdict(list)
    for row in timed:
        groups[row.device.id].append(row)
    return groups


def _by_family(rows: Iterable[TimedKernel]) -> dict[FamilyKey, list[TimedKernel]]:
    groups: dict[FamilyKey, list[TimedKernel]] = defaultdict(list)
    for row in rows:
        kernel = row.kernel
        variant = calibrated_variant(kernel.family, kernel.variant)
        groups[kernel.family, variant, arithmetic_of(kernel, row.device)].append(row)
    return groups


def _has_same_chip(device: DeviceSpec, other: DeviceSpec) -> bool:
    return device.id == other.id or (bool(device.chip) and device.chip == other.chip)


def _time_ns(rows: Sequence[TimedKernel]) -> Floats:
    return np.array([row.time_ns for row in rows])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
