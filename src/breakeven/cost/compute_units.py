"""Which units of a device compute a kernel, and the rate that they reach."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.cost.kernel import ALIGNED_BYTES, Arithmetic, Family, Kernel
from breakeven.device import DeviceSpec, Precision, generation_of

_MATRIX_FAMILIES = frozenset(
    {Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT}
)

# Datasheets of A100 and later give the fp64 rate of tensor cores, which the products of cuBLAS use;
# convolutions run on plain units, at half the rate of fp32 at the most. An A100 reaches 3.9 to 6.3
# TFLOP/s in the inference of ResNets and VGGs in fp64 (pytorch-gpu-benchmark).
_FP64_MATRIX_FAMILIES = frozenset({Family.GEMM, Family.BATCHED_GEMM, Family.LINALG})

_MATRIX_ELEMENT_BYTES = {Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}

# Without hardware for it, fp64 is done in software: some tens of fp32 instructions each.
_SOFTWARE_FP64_FRACTION = 1 / 32

# Datasheets of RDNA from the third generation on count two vector instructions issued at once,
# which compilers seldom find: rocBLAS multiplies matrices of 4,096 rows in fp32 at some 31 of the
# 61 TFLOP/s of an RX 7900 XTX (seb-v.github.io, "Deep Dive into Matrix Optimization on AMD GPUs",
# 2025-01-12: a kernel by hand, 60 % faster, reaches 50).
_DUAL_ISSUE = ("RDNA3", "RDNA3.5", "RDNA4")
_ISSUED_FRACTION = 0.5
# In fp64 such a unit starts an instruction every 32 cycles, where RDNA2's does every 16 (LLVM,
# SISchedule.td: WriteDouble takes 38 cycles in GFX11SpeedModel and GFX12SpeedModel, 22 in
# GFX10SpeedModel): the rate that the datasheet of RDNA4 states, half of what that of RDNA3 does.
_DUAL_ISSUE_FP64_FRACTION = 1 / 64

# Below this share of the fp32 rate, as fp64 has on most boards, arithmetic needs no more power than
# the boost clock has.
_COOL_PACE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedArithmetic:
    """The units that compute, and the rate of their datasheet that code can issue."""

    arithmetic: Arithmetic
    flop_per_s: float


def issued_flop_per_s(device: DeviceSpec) -> float:
    """Return the rate of plain units in fp32, as far as libraries can issue instructions."""
    is_dual = device.architecture in _DUAL_ISSUE
    return device.peak_flop_per_s[Precision.FP32] * (_ISSUED_FRACTION if is_dual else 1.0)


def resolve_arithmetic(kernel: Kernel, device: DeviceSpec) -> ResolvedArithmetic:
    """Return which units of ``device`` compute ``kernel``.

    A precision that the device lacks falls back as its libraries do: TF32 to FP32; BF16 to FP32,
    which emulates it; FP16 without matrix units to FP32 on NVIDIA, where torch asks cuBLAS and
    cuDNN to accumulate in fp32. Elsewhere packed FP16 runs at the datasheet's rate. Only matrix
    work uses matrix units; other families compute in FP32 whatever they load and store.
    """
    precision = kernel.precision
    peak = device.peak_flop_per_s
    fp32 = peak[Precision.FP32]
    if precision is Precision.FP64:
        fp64 = peak.get(Precision.FP64, fp32 * _SOFTWARE_FP64_FRACTION)
        if kernel.family not in _FP64_MATRIX_FAMILIES and device.vendor == "nvidia":
            fp64 = min(fp64, fp32 / 2)
        if device.architecture in _DUAL_ISSUE:
            fp64 = min(fp64, fp32 * _DUAL_ISSUE_FP64_FRACTION)
        return ResolvedArithmetic(arithmetic="vector", flop_per_s=fp64)
    vector = ResolvedArithmetic(arithmetic="vector", flop_per_s=issued_flop_per_s(device))
    if precision is Precision.FP32 or precision not in peak or not suits_matrix_units(kernel):
        return vector
    if has_matrix_units(device):
        return ResolvedArithmetic(arithmetic="tensor", flop_per_s=max(peak[precision], fp32))
    if precision is Precision.FP16 and device.vendor != "nvidia":
        return ResolvedArithmetic(arithmetic="vector", flop_per_s=max(peak[precision], fp32))
    return vector


def loads_per_element(kernel: Kernel) -> float:
    """Return how many loads matrix units need for an element, 0 where rows are aligned.

    A load fetches as many bytes as the starts of rows are multiples of, 16 at the most.
    """
    element_bytes = _MATRIX_ELEMENT_BYTES.get(kernel.precision)
    if element_bytes is None or kernel.alignment_bytes in (0, ALIGNED_BYTES):
        return 0.0
    return element_bytes / kernel.alignment_bytes


def suits_matrix_units(kernel: Kernel) -> bool:
    """Return whether libraries put ``kernel`` on matrix units where there are some.

    Convolutions need channels in multiples of 16 bytes, which the first layer of a network
    seldom has: DeepBench's V100 computes fp16 convolutions of 1 or 3 channels at 1-8 TFLOP/s,
    others at 40-95. A channel-wise convolution is no matrix product at all.
    """
    if kernel.family is not Family.CONVOLUTION:
        return kernel.family in _MATRIX_FAMILIES
    if kernel.variant.startswith("depthwise"):
        return False
    alignment = 4 if kernel.precision is Precision.TF32 else 8
    channels = kernel.m if "backward_weight" in kernel.variant else kernel.k
    return kernel.n % alignment == 0 and channels % alignment == 0


def has_matrix_units(device: DeviceSpec) -> bool:
    """Return whether ``device`` has tensor cores or the like.

    Those of Volta and Turing are told by an FP16 rate of several times the FP32 rate, later ones
    by BF16. Twice the FP32 rate alone is packed arithmetic: P100, GTX 16xx, RDNA.
    """
    peak = device.peak_flop_per_s
    has_fast_fp16 = peak.get(Precision.FP16, 0.0) >= 3 * peak[Precision.FP32]
    return has_fast_fp16 or Precision.BF16 in peak or Precision.TF32 in peak


def sustained_fraction(device: DeviceSpec, arithmetic: Arithmetic = "vector") -> float:
    """Return the share of the peak that the board's power sustains, at most 1.

    Matrix units need less energy for a FLOP. Against the shares of a V100, a T4 reaches half in
    fp32 and three quarters in fp16 (DeepBench): about the square root.
    """
    generation = generation_of(device)
    vector = _share_of_power(device, generation.watts_per_flop_per_s, Precision.FP32)
    if arithmetic == "vector":
        return vector
    matrix = _share_of_power(device, generation.watts_per_matrix_flop_per_s, Precision.FP16)
    return min(vector, matrix) ** 0.5


def _share_of_power(
    device: DeviceSpec, watts_per_flop_per_s: float | None, precision: Precision
) -> float:
    """Return the board's power against what the rate of ``precision`` needs, at most 1."""
    rate = device.peak_flop_per_s.get(precision)
    if watts_per_flop_per_s is None or rate is None:
        return 1.0
    return min(1.0, device.tdp_watts / (watts_per_flop_per_s * rate))


def clock_headroom(device: DeviceSpec) -> float:
    """Return the clock of a board whose units need little power over that of its datasheet.

    At least 1. What needs more power is not raised: its clock is what the power allows.
    """
    clock_hz = generation_of(device).board_clock_hz
    if clock_hz is None or device.market in ("datacenter", "integrated"):
        return 1.0
    return max(1.0, clock_hz / device.clock_hz)


def reached_flop_per_s(resolved: ResolvedArithmetic, device: DeviceSpec) -> float:
    """Return the rate of the units at the clock that the board's power allows."""
    # Units that are few do not heat a board.
    if resolved.flop_per_s < _COOL_PACE * device.peak_flop_per_s[Precision.FP32]:
        return resolved.flop_per_s * clock_headroom(device)
    return resolved.flop_per_s * sustained_fraction(device, resolved.arithmetic)
