"""The time of one kernel on one device: units, roofline, tiles and waves, cache.

Arrays of work have shape (num_kernels, 1), those of devices and efficiencies (1, num_devices);
results have shape (num_kernels, num_devices).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from breakeven.cost.kernel import (
    ALIGNED_BYTES,
    FULL_TILE,
    TILE_SET_NAMES,
    TILE_SETS,
    Arithmetic,
    Family,
    Kernel,
    TileSet,
)
from breakeven.device import DeviceSpec, Precision, generation_of

Floats = NDArray[np.float64]

# Families that matrix units compute.
MATRIX_FAMILIES = frozenset(
    {Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT}
)

# Datasheets of A100 and later give the fp64 rate of tensor cores, which the products of cuBLAS use;
# convolutions run on plain units, at half the rate of fp32 at the most. An A100 reaches 3.9 to 6.3
# TFLOP/s in the inference of ResNets and VGGs in fp64 (pytorch-gpu-benchmark).
_FP64_MATRIX_FAMILIES = frozenset({Family.GEMM, Family.BATCHED_GEMM, Family.LINALG})

_MATRIX_ELEMENT_BYTES = {Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}

# Devices without fp64 hardware emulate it: some tens of fp32 instructions each.
_SOFTWARE_FP64_FRACTION = 1 / 32

# Datasheets of RDNA from the third generation on count two vector instructions issued at once, a
# pairing that compilers seldom find: rocBLAS multiplies matrices of 4,096 rows in fp32 at some 31
# of the 61 TFLOP/s of an RX 7900 XTX (seb-v.github.io, "Deep Dive into Matrix Optimization on AMD
# GPUs", 2025-01-12: a hand-written kernel, 60 % faster, reaches 50).
_DUAL_ISSUE = ("RDNA3", "RDNA3.5", "RDNA4")
_ISSUED_FRACTION = 0.5
# In fp64 such a unit starts an instruction every 32 cycles, RDNA2's every 16 (LLVM, SISchedule.td:
# WriteDouble takes 38 cycles in GFX11SpeedModel and GFX12SpeedModel, 22 in GFX10SpeedModel). That
# is the rate on RDNA4's datasheet, and half of the rate on RDNA3's.
_DUAL_ISSUE_FP64_FRACTION = 1 / 64

# Below this fraction of the fp32 rate, as fp64 has on most boards, arithmetic runs at the boost
# clock within the board's power.
_COOL_PACE = 0.25


class ResolvedArithmetic(NamedTuple):
    """The units that compute, and the part of their datasheet rate that code can issue."""

    arithmetic: Arithmetic
    flop_per_s: float


def issued_flop_per_s(device: DeviceSpec) -> float:
    """Return the fp32 rate of plain units, as far as libraries can issue instructions."""
    is_dual = device.architecture in _DUAL_ISSUE
    return device.peak_flop_per_s[Precision.FP32] * (_ISSUED_FRACTION if is_dual else 1.0)


def resolve_arithmetic(kernel: Kernel, device: DeviceSpec) -> ResolvedArithmetic:
    """Return the units of ``device`` that compute ``kernel``.

    A precision that the device lacks falls back as in its libraries: TF32 to FP32; BF16 to FP32,
    which emulates it; FP16 without matrix units to FP32 on NVIDIA, where torch makes cuBLAS and
    cuDNN accumulate in fp32. On other vendors packed FP16 runs at the datasheet's rate. Only matrix
    work uses matrix units; other families compute in FP32 for any storage dtype.
    """
    precision, peak = kernel.precision, device.peak_flop_per_s
    fp32 = peak[Precision.FP32]
    if precision is Precision.FP64:
        fp64 = peak.get(Precision.FP64, fp32 * _SOFTWARE_FP64_FRACTION)
        if kernel.family not in _FP64_MATRIX_FAMILIES and device.vendor == "nvidia":
            fp64 = min(fp64, fp32 / 2)
        if device.architecture in _DUAL_ISSUE:
            fp64 = min(fp64, fp32 * _DUAL_ISSUE_FP64_FRACTION)
        return ResolvedArithmetic("vector", fp64)
    if precision is not Precision.FP32 and precision in peak and suits_matrix_units(kernel):
        if has_matrix_units(device):
            return ResolvedArithmetic("tensor", max(peak[precision], fp32))
        if precision is Precision.FP16 and device.vendor != "nvidia":
            return ResolvedArithmetic("vector", max(peak[precision], fp32))
    return ResolvedArithmetic("vector", issued_flop_per_s(device))


def loads_per_element(kernel: Kernel) -> float:
    """Return the loads that matrix units need per element; 0 for aligned rows.

    A load fetches as many bytes as the alignment of the row starts, at most 16.
    """
    element_bytes = _MATRIX_ELEMENT_BYTES.get(kernel.precision)
    if element_bytes is None or kernel.alignment_bytes in (0, ALIGNED_BYTES):
        return 0.0
    return element_bytes / kernel.alignment_bytes


def suits_matrix_units(kernel: Kernel) -> bool:
    """Return whether libraries run ``kernel`` on matrix units if the device has them.

    Convolutions need channels in multiples of 16 bytes, which the first layer of a network
    seldom has: DeepBench's V100 computes fp16 convolutions of 1 or 3 channels at 1-8 TFLOP/s,
    others at 40-95. A channel-wise convolution is no matrix product at all.
    """
    if kernel.family is not Family.CONVOLUTION:
        return kernel.family in MATRIX_FAMILIES
    if kernel.variant.startswith("depthwise"):
        return False
    alignment = 4 if kernel.precision is Precision.TF32 else 8
    channels = kernel.m if "backward_weight" in kernel.variant else kernel.k
    return kernel.n % alignment == 0 and channels % alignment == 0


def has_matrix_units(device: DeviceSpec) -> bool:
    """Return whether ``device`` has tensor cores or the like.

    An FP16 rate of several times the FP32 rate identifies those of Volta and Turing, BF16 later
    ones. Twice the FP32 rate alone is packed arithmetic: P100, GTX 16xx, RDNA.
    """
    peak = device.peak_flop_per_s
    has_fast_fp16 = peak.get(Precision.FP16, 0.0) >= 3 * peak[Precision.FP32]
    return has_fast_fp16 or Precision.BF16 in peak or Precision.TF32 in peak


def sustained_fraction(device: DeviceSpec, arithmetic: Arithmetic = "vector") -> float:
    """Return the fraction of the peak that the board's power sustains, at most 1.

    Matrix units need less energy per FLOP. Relative to a V100's fractions, a T4 reaches half in
    fp32 and three quarters in fp16 (DeepBench): about the square root.
    """

    def share(watts_per_flop_per_s: float | None, precision: Precision) -> float:
        rate = device.peak_flop_per_s.get(precision)
        if watts_per_flop_per_s is None or rate is None:
            return 1.0
        return min(1.0, device.tdp_watts / (watts_per_flop_per_s * rate))

    generation = generation_of(device)
    vector = share(generation.watts_per_flop_per_s, Precision.FP32)
    if arithmetic == "vector":
        return vector
    return min(vector, share(generation.watts_per_matrix_flop_per_s, Precision.FP16)) ** 0.5


def clock_headroom(device: DeviceSpec) -> float:
    """Return the clock of a board with idle power budget, over that of its datasheet.

    At least 1. It does not apply to units that need more power, whose clock the power limits.
    """
    clock_hz = generation_of(device).board_clock_hz
    if clock_hz is None or device.market in ("datacenter", "integrated"):
        return 1.0
    return max(1.0, clock_hz / device.clock_hz)


def reached_flop_per_s(resolved: ResolvedArithmetic, device: DeviceSpec) -> float:
    """Return the rate of the units at the clock that the board's power allows."""
    # Few units do not heat a board.
    if resolved.flop_per_s < _COOL_PACE * device.peak_flop_per_s[Precision.FP32]:
        return resolved.flop_per_s * clock_headroom(device)
    return resolved.flop_per_s * sustained_fraction(device, resolved.arithmetic)


# Numbers of parts into which libraries split the contraction of a product of few tiles.
_SPLITS = (2, 4, 8, 16, 32, 64)
# A product of more results than this fills any device without a split.
_MAX_SPLIT_RESULTS = 2048 * 128 * 128
# Shorter contractions are not split; they take no longer than the shortest split one.
_LEAST_SPLIT_K = 257
_ACCUMULATOR_BYTES = 4
# Between these fractions of the last-level cache, its hit rate falls from 1 to 0 for the same data
# streamed repeatedly; and the cache's bandwidth per SM and clock.
# Source: te42kyfo/gpu-benches small kernels in a graph: A100 (40 MB) 20 MB in 6.8 µs, 30 MB in
# 11.5, 44 MB in 28.6; A40 (6 MB) 5.7 MB in 3.6 µs, 8.5 MB in 10.2; L40 (96 MB) 70 MB in 16.6 µs,
# 140 MB in 131: 13-25 bytes per SM and clock.
_CACHE_FULL_FRACTION = 0.7
_CACHE_MISS_FRACTION = 1.3
CACHE_BYTES_PER_SM_CLOCK = 16.0
# Rate of one thread block, which mostly waits for memory: about the same on any device. Source:
# training VGG with batch norm and without, batches of 12, on GTX 1080 Ti, TITAN V, RTX 2080 Ti,
# TITAN RTX and A100 (pytorch-gpu-benchmark, fp32, 16 pairs): its first layers have 64 channels,
# which leave much of an A100 idle. With 8 passes over the activations at 0.9 of the bandwidth, and
# this limit per channel, the mean error of the difference is 10 %.
_BLOCK_BYTES_PER_S = 8e9
# Unit of the fitted latency of a recurrent layer's time step. A step of any small layer takes some
# 20,000 to 50,000 cycles: cuDNN's product and its gates wait for the step before, for memory and
# for each other, independent of the units' rate. Source: DeepBench's layers of 256 and 512 units,
# 25 to 60 µs a step on M40, GTX 1080 Ti, P100 and V100 alike.
_LATENCY_CYCLES = 100.0
# Cycles in which an SM moves one element of a product's operands from memory to its matrix units,
# if rows start at odd elements. Each element is then loaded and stored separately, through
# registers; aligned rows move 16 bytes at a time past them. And the largest tile of such kernels.
# A value between two sources: an RTX 4090, bf16, square products of 2,055 to 2,073, a kernel
# "s1688gemm_bf16_128x128_nn_align1", 0.69 to 0.74 of the rate of 2,040 (pytorch issue 181718; here
# 0.66 to 0.68), and an A100, where padding a vocabulary of 50,257 reportedly saves a quarter of
# nanoGPT's step, some 60 TFLOP/s by our estimate (here 56). The gap of a ladder of GPT-2 there,
# some 55, was known when the value was chosen.
_LOAD_CYCLES = 0.3
_LARGEST_UNALIGNED_TILE = 128 * 128
# Cycles that an SM needs for a load of a single element, its address and its bounds. Source: timm's
# ConvMixers (windows of 7 and 9) trained under amp-fp16 on an RTX 3090 (torch 1.11): the rest of
# their steps' time is 0.19 to 0.23 cycles for a pair of loads.
_SINGLE_LOAD_CYCLES = 0.1
# Fraction of the DRAM bandwidth that changing a tensor's memory format reaches: the low end of the
# 0.71-0.86 of streams, as one side of a transposition is accessed in short runs.
_CONVERSION_FRACTION = 0.7


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays that are indexed and concatenated together along their first axis, or their second."""

    def take(self, rows: NDArray[Any]) -> Self:
        """Return these rows, by position or mask."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self._names()})

    def of(self, columns: NDArray[Any]) -> Self:
        """Return these columns, as `take` does."""
        return type(self)(**{name: getattr(self, name)[:, columns] for name in self._names()})

    def then(self, others: Self) -> Self:
        """Return the rows of this followed by those of the others."""
        both = {name: (getattr(self, name), getattr(others, name)) for name in self._names()}
        return type(self)(**{name: np.concatenate(arrays) for name, arrays in both.items()})

    def _names(self) -> list[str]:
        return [field.name for field in fields(self)]


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
    num_steps: Floats
    conversion_bytes: Floats
    matrix_share: Floats
    loads_per_element: Floats
    loads: Floats
    num_blocks: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArrays(Columns):
    """Limits of devices for one arithmetic, each of shape (1, num_devices).

    ``pace`` is the rate of the arithmetic over that of fp32, at most 1. Tiles lose a fixed time to
    latencies and shared memory, which is a smaller part of a slower kernel.
    """

    flop_per_s: Floats
    bytes_per_s: Floats
    cache_bytes: Floats
    cache_bytes_per_s: Floats
    num_sms: Floats
    floor_ns: Floats
    pace: Floats
    cycle_ns: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyArrays(Columns):
    """Calibration of one family, each of shape (1, num_devices); see `FamilyEfficiency`.

    ``tile_set`` is an index into `TILE_SET_NAMES`.
    """

    compute_fraction: Floats
    tile_loss: Floats
    prologue_k: Floats
    memory_fraction: Floats
    tile_set: NDArray[np.intp]


def memory_ns(
    work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays, *, warm_fraction: float
) -> Floats:
    """Return the time to move the bytes of each kernel.

    Args:
        work: Bytes that must move at least once.
        device: Bandwidths and cache.
        efficiency: Fraction of the DRAM bandwidth that is reached.
        warm_fraction: Fraction of a working set in the cache that is there already: 1 if
            the same kernel is repeated, 0 if every byte was last used long ago.
    """
    hit = cache_hit_fraction(work.num_bytes, device) * warm_fraction
    seconds_per_byte = _seconds_per_byte(hit, device, efficiency)
    # Few blocks cannot use the whole bandwidth.
    blocks = np.where(work.num_blocks > 0, work.num_blocks, np.inf)
    seconds_per_byte = np.maximum(seconds_per_byte, 1.0 / (blocks * _BLOCK_BYTES_PER_S))
    # Threads that fetch each element separately cannot use it either.
    loading_ns = work.loads * _SINGLE_LOAD_CYCLES * device.cycle_ns / device.num_sms
    return np.maximum(1e9 * work.num_bytes * seconds_per_byte, loading_ns)


def _seconds_per_byte(hit: Floats, device: DeviceArrays, efficiency: EfficiencyArrays) -> Floats:
    dram_bytes_per_s = device.bytes_per_s * efficiency.memory_fraction
    cache_bytes_per_s = np.maximum(device.cache_bytes_per_s, dram_bytes_per_s)
    return hit / cache_bytes_per_s + (1.0 - hit) / dram_bytes_per_s


def cache_hit_fraction(num_bytes: Floats, device: DeviceArrays) -> Floats:
    """Return the fraction of ``num_bytes``, streamed repeatedly, that the cache delivers."""
    span = _CACHE_MISS_FRACTION - _CACHE_FULL_FRACTION
    return np.clip((_CACHE_MISS_FRACTION - num_bytes / device.cache_bytes) / span, 0.0, 1.0)


def conversion_ns(work: WorkArrays, device: DeviceArrays) -> Floats:
    """Return the time of changing the memory format of tensors before and after a kernel."""
    return 1e9 * work.conversion_bytes / (device.bytes_per_s * _CONVERSION_FRACTION)


def step_latency_ns(device: DeviceArrays, efficiency: EfficiencyArrays) -> Floats:
    """Return the wait of a recurrent layer's time step, without its arithmetic and its traffic.

    ``prologue_k`` of such a family counts cycles, not steps of a contraction: latencies depend on
    the clock, not on the number of units.
    """
    return efficiency.prologue_k * _LATENCY_CYCLES * device.cycle_ns


def step_weights_ns(
    work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays, *, element_bytes: int
) -> Floats:
    """Return the time to read the weights of a recurrent layer in every time step.

    Args:
        work: Has ``n`` and ``k`` of the weights, and a launch for each time step.
        device: Bandwidths, and the cache, which delivers the part that it holds.
        efficiency: Fraction of the DRAM bandwidth that is reached.
        element_bytes: Bytes of a weight.
    """
    num_bytes = element_bytes * work.n * work.k
    hit = cache_hit_fraction(num_bytes, device)
    return 1e9 * work.launches * num_bytes * _seconds_per_byte(hit, device, efficiency)


def flat_compute_ns(work: WorkArrays, device: DeviceArrays, efficiency: EfficiencyArrays) -> Floats:
    """Return the time of arithmetic that spreads evenly over the device."""
    return 1e9 * work.flop / (device.flop_per_s * efficiency.compute_fraction)


def tiled_compute_ns(
    work: WorkArrays,
    device: DeviceArrays,
    efficiency: EfficiencyArrays,
    *,
    may_split: bool,
    own_tiles: TileSet | None = None,
) -> Floats:
    """Return the time of matrix arithmetic, computed tile by tile in waves over the SMs.

    A partial tile, a partial last wave and the start of each contraction cost as much as useful
    work, so a small product is slow. Each wave reads operands too large for the cache again, which
    slows large products on devices with little bandwidth.

    Args:
        work: Has ``m``, ``n`` and ``k`` of at least 1.
        device: Rates and SMs.
        efficiency: Fraction of the rates, and the tiles of the library's products.
        may_split: Whether the library splits long contractions.
        own_tiles: The tiles of an algorithm with its own kernel, which splits nothing.
    """
    if own_tiles is not None:
        seconds = _fastest_s(work, device, efficiency, TILE_SETS[own_tiles], may_split=False)
    else:
        seconds = np.empty(np.broadcast_shapes(work.m.shape, device.num_sms.shape))
        for tile_set in np.unique(efficiency.tile_set):
            columns = efficiency.tile_set[0] == tile_set
            tiles = TILE_SETS[TILE_SET_NAMES[tile_set]]
            seconds[:, columns] = _fastest_s(
                work, device.of(columns), efficiency.of(columns), tiles, may_split=may_split
            )
    # The work over that of the product: several products in one kernel, overheads.
    return 1e9 * seconds * (work.flop / (2.0 * work.m * work.n * work.k * work.batch))


def _fastest_s(
    work: WorkArrays,
    device: DeviceArrays,
    efficiency: EfficiencyArrays,
    tiles: tuple[tuple[int, int], ...],
    *,
    may_split: bool,
) -> Floats:
    """Return the seconds of each product with the fastest of ``tiles``."""
    sm_flop_per_s = device.flop_per_s * efficiency.compute_fraction / device.num_sms
    dram_bytes_per_s = device.bytes_per_s * efficiency.memory_fraction
    m, n, k, batch = work.m, work.n, work.k, work.batch
    # In a recurrent layer, the bytes are those of all steps and the product is that of one.
    element_bytes = work.num_bytes / (work.launches * batch * (m * k + k * n + m * n))
    missed = 1.0 - cache_hit_fraction(element_bytes * (m * k + k * n), device)
    fastest = np.full(np.broadcast_shapes(m.shape, sm_flop_per_s.shape), np.inf)
    # Libraries split single products only.
    splits = may_split & (batch == 1) & (m * n < _MAX_SPLIT_RESULTS)
    split_fastest = np.full_like(fastest[splits[:, 0]], np.inf)
    for rows, columns in tiles:
        tiles_m, tiles_n = np.ceil(m / rows), np.ceil(n / columns)
        num_tiles = tiles_m * tiles_n * batch
        # Few units are busy with few tiles already.
        beside = np.maximum(1.0, np.ceil(FULL_TILE // (rows * columns) * device.pace))
        loss = 1.0 + device.pace * efficiency.tile_loss * (1.0 / rows + 1.0 / columns)
        step_s = 2.0 * rows * columns * loss / sm_flop_per_s
        loading_s = (rows + columns) * work.loads_per_element * _LOAD_CYCLES * device.cycle_ns / 1e9
        if rows * columns > _LARGEST_UNALIGNED_TILE:
            loading_s = np.where(work.loads_per_element > 0, np.inf, loading_s)
        step_s = np.maximum(step_s, loading_s)
        in_wave = device.num_sms * beside
        # Blocks run along n first, so a wave reads many columns and the rows of few tiles; data
        # beyond the cache comes from memory again for each wave.
        share = tiles_n / in_wave
        edges = tiles_m * (
            tiles_n * np.minimum(share, 1.0) * columns + np.maximum(share, 1.0) * rows
        )
        reread_s = missed * edges * k * element_bytes * batch / dram_bytes_per_s
        seconds = (
            np.ceil(num_tiles / in_wave)
            * beside
            * (k + device.pace * efficiency.prologue_k)
            * step_s
        )
        np.minimum(fastest, np.maximum(seconds, reread_s), out=fastest)
        if not splits.any():
            continue
        tiles_1, results_1 = num_tiles[splits], (m * n)[splits]
        k_1 = np.maximum(k[splits], _LEAST_SPLIT_K)
        for split in _SPLITS:
            waves = np.ceil(tiles_1[:, np.newaxis] * split / in_wave) * beside
            depth = np.ceil(k_1 / split)[:, np.newaxis] + device.pace * efficiency.prologue_k
            seconds = waves * depth * step_s[splits[:, 0]]
            # Each part of the contraction is written, and read back for the sum.
            partial_bytes = 2 * split * _ACCUMULATOR_BYTES * results_1[:, np.newaxis]
            seconds = np.maximum(seconds, reread_s[splits[:, 0]]) + partial_bytes / dram_bytes_per_s
            split_fastest = np.minimum(split_fastest, seconds)
    if splits.any():
        fastest[splits[:, 0]] = np.minimum(fastest[splits[:, 0]], split_fastest)
    return fastest


def device_arrays(devices: Sequence[DeviceSpec], kernel: Kernel) -> DeviceArrays:
    """Return the limits of ``devices`` for kernels like ``kernel``, each (1, num_devices)."""

    def row(values: Iterable[float]) -> Floats:
        return np.array([[*values]], dtype=np.float64)

    units = [(resolve_arithmetic(kernel, device), device) for device in devices]
    return DeviceArrays(
        flop_per_s=row(reached_flop_per_s(resolved, device) for resolved, device in units),
        bytes_per_s=row(device.memory_bytes_per_s for device in devices),
        cache_bytes=row(device.l2_bytes for device in devices),
        cache_bytes_per_s=row(
            CACHE_BYTES_PER_SM_CLOCK * device.num_sms * device.clock_hz for device in devices
        ),
        num_sms=row(device.num_sms for device in devices),
        floor_ns=row(generation_of(device).floor_ns for device in devices),
        pace=row(min(1.0, own.flop_per_s / issued_flop_per_s(device)) for own, device in units),
        cycle_ns=row(1e9 / device.clock_hz for device in devices),
    )
