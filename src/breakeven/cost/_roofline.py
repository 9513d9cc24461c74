"""The physics of one kernel on one device: roofline, tiles and waves, cache, floor.

Arrays of work have shape (num_kernels, 1), those of devices and efficiencies (1, num_devices);
results have shape (num_kernels, num_devices).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Results that one thread block computes, rows × columns, and into how many parts the contraction
# may be split: what GEMM libraries ship. The fastest is taken, as their heuristics mean to.
_TILES = (
    (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32),
    (128, 8), (8, 128),
)  # fmt: skip
_SPLITS = (1, 3, 9)
_ACCUMULATOR_BYTES = 4
# The smallest tile of a taught device is a mean of tiles: the next larger one counts as shipped.
_TILE_TOLERANCE = 0.75

# Between these shares of the last-level cache its hit rate falls from 1 to 0 when the same data
# is streamed again and again; and what the cache delivers per SM and clock.
# Source: te42kyfo/gpu-benches small kernels in a graph: A100 (40 MB) 20 MB in 6.8 µs, 30 MB in
# 11.5, 44 MB in 28.6; A40 (6 MB) 5.7 MB in 3.6 µs, 8.5 MB in 10.2; L40 (96 MB) 70 MB in 16.6 µs,
# 140 MB in 131: 13-25 bytes per SM and clock.
_CACHE_FULL_FRACTION = 0.7
_CACHE_MISS_FRACTION = 1.3
CACHE_BYTES_PER_SM_CLOCK = 16.0
# Share of the DRAM bandwidth that changing the memory format of a tensor reaches: the low end of
# 0.71-0.86 seen for streams, as one side of a transposition is accessed in short runs.
_CONVERSION_FRACTION = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkArrays:
    """Work of kernels, each of shape (num_kernels, 1); see `Kernel`."""

    flop: Floats
    num_bytes: Floats
    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    launches: Floats
    conversion_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArrays:
    """Limits of devices for one arithmetic, each of shape (1, num_devices)."""

    flop_per_s: Floats
    bytes_per_s: Floats
    cache_bytes: Floats
    cache_bytes_per_s: Floats
    num_sms: Floats
    floor_ns: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyArrays:
    """Calibration of one family, each of shape (1, num_devices); see `FamilyEfficiency`."""

    compute_fraction: Floats
    tile_loss: Floats
    prologue_k: Floats
    smallest_tile: Floats
    memory_fraction: Floats


def memory_ns(
    work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays, *, warm_fraction: float
) -> Floats:
    """Return the time to move the bytes of each kernel.

    Args:
        work: Bytes that must move at least once.
        device: Bandwidths and cache.
        efficiency: Share of the DRAM bandwidth that is reached.
        warm_fraction: Share of a working set that fits the cache and is there already: 1 when
            the same kernel is repeated, 0 when every byte was last used long ago.
    """
    span = _CACHE_MISS_FRACTION - _CACHE_FULL_FRACTION
    hit = (_CACHE_MISS_FRACTION - work.num_bytes / device.cache_bytes) / span
    hit = np.clip(hit, 0.0, 1.0) * warm_fraction
    dram_bytes_per_s = device.bytes_per_s * efficiency.memory_fraction
    cache_bytes_per_s = np.maximum(device.cache_bytes_per_s, dram_bytes_per_s)
    seconds_per_byte = hit / cache_bytes_per_s + (1.0 - hit) / dram_bytes_per_s
    return 1e9 * work.num_bytes * seconds_per_byte


def conversion_ns(work: WorkArrays, device: DeviceArrays) -> Floats:
    """Return the time of changing the memory format of tensors before and after a kernel."""
    return 1e9 * work.conversion_bytes / (device.bytes_per_s * _CONVERSION_FRACTION)


def flat_compute_ns(work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays) -> Floats:
    """Return the time of arithmetic that spreads evenly over the device."""
    return 1e9 * work.flop / (device.flop_per_s * efficiency.compute_fraction)


def tiled_compute_ns(
    work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays
) -> Floats:
    """Return the time of matrix arithmetic, computed tile by tile in waves over the SMs.

    A result that does not fill its tiles, tiles that do not fill the last wave, and the start of
    each contraction all cost as much as useful work, so a small product is slow. ``work`` must
    have ``m``, ``n`` and ``k`` of at least 1.
    """
    sm_flop_per_s = device.flop_per_s * efficiency.compute_fraction / device.num_sms
    dram_bytes_per_s = device.bytes_per_s * efficiency.memory_fraction
    fastest = np.full(np.broadcast_shapes(work.m.shape, sm_flop_per_s.shape), np.inf)
    for rows, columns in _TILES:
        tiles = np.ceil(work.m / rows) * np.ceil(work.n / columns) * work.batch
        loss = 1.0 + efficiency.tile_loss * (1.0 / rows + 1.0 / columns)
        is_shipped = min(rows, columns) >= efficiency.smallest_tile * _TILE_TOLERANCE
        loss = np.where(is_shipped, loss, np.inf)
        step_s = 2.0 * rows * columns * loss / sm_flop_per_s
        for split in _SPLITS:
            waves = np.ceil(tiles * split / device.num_sms)
            seconds = waves * (np.ceil(work.k / split) + efficiency.prologue_k) * step_s
            if split > 1:
                # Libraries split single products only.
                seconds = np.where(work.batch > 1, np.inf, seconds)
                # Each part of the contraction is written and read back to be added up.
                partial_bytes = 2 * split * _ACCUMULATOR_BYTES * work.m * work.n * work.batch
                seconds = seconds + partial_bytes / dram_bytes_per_s
            np.minimum(fastest, seconds, out=fastest)
    # Work that is not the plain product (several products in one kernel, Winograd) scales it.
    share = work.flop / (2.0 * work.m * work.n * work.k * work.batch)
    return 1e9 * fastest * share
