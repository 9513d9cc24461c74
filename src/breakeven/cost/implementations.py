"""Kernels that a recorded step leaves open: their implementation on a device and its rate.

Fused attention: the ``variant`` of a kernel names the implementations that torch may choose, in
order of preference, joined by ``|``, then ``_backward``: ``cudnn|flash|efficient_backward``. The
device decides, so one recorded step fits all devices.

Small recurrent layers: cuDNN runs all their time steps within one kernel. From version 8.2.1 on, it
has an algorithm for few hidden units that keeps the weights on the chip:
CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H. torch chooses it by the layer's size alone, from 1.10 on.
The host launches one kernel per layer and direction instead of some for each time step. A step
waits for little more than its own arithmetic.
Source: use_rnn_persist_small_h and get_algo in aten/src/ATen/native/cudnn/RNN.cpp.

Convolutions of few channels per group, on matrix units: cuDNN 7 computed a product for each group,
which leaves most of a tile empty. Later versions put groups side by side until a tile is full, and
multiply the entries between different groups by zeros. The time is then that of groups with a full
tile's channels: under torch 2.4 a ResNeXt of 32 groups of 8 takes as long as one of 64 groups of 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.device import DeviceSpec, Precision

BACKWARD = "_backward"

# Queries of one block; a block computes the scores of whole blocks of keys.
BLOCK = 128

# Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the hardware support of flash (sm80
# to sm121; CDNA by AOTriton) and of efficient attention (all).
_FLASH_GENERATIONS = frozenset({"ampere", "ada", "hopper", "blackwell", "cdna"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """The rate of an implementation on matrix units.

    Args:
        compute_fraction: Fraction of the units' rate, in the products alone.
        prologue_keys: Cost of a block's start and end, in keys per block of queries.
        forward_cycles: Cycles of an SM for the softmax of one score: its exponential, and the
            rescaling of the running sum.
        backward_cycles: The same for the backward pass, which recomputes the score.
        log_sigma: Standard deviation of the logarithm of the time.
    """

    compute_fraction: float
    prologue_keys: float
    forward_cycles: float
    backward_cycles: float
    log_sigma: float


# Source: FlashAttention-2 in fp16 on A100 SXM4 and RTX A5000, 512 to 16k tokens, heads of 64 and
# 128, causal or not (figures of Dao-AILab/flash-attention, commit 0251105a2f), and three calls of
# torch's on an A100: `benchmarks/attention_rates.py` compares them.
_FLASH = AttentionRate(
    compute_fraction=0.96, prologue_keys=77, forward_cycles=0.075, backward_cycles=0.248,
    log_sigma=0.08,
)  # fmt: skip
# Flash uses Ampere's instructions, which reach 63 % of the rate of Hopper's own. Source: Luo et
# al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024, mma against wgmma.
# Datacenter Blackwell is assumed to be alike; neither has a measured row.
_FLASH_ON_NEWER_UNITS = replace(_FLASH, compute_fraction=0.60, log_sigma=0.20)
# Source: xformers' kernels, which are torch's efficient attention, in the same figures: A100,
# forward and backward in one time. Older GPUs: transferred.
_EFFICIENT = AttentionRate(
    compute_fraction=0.45, prologue_keys=15, forward_cycles=0.18, backward_cycles=0.66,
    log_sigma=0.15,
)  # fmt: skip
# Hopper and datacenter Blackwell: judgement, from the fraction of the rate that FlashAttention-3
# and cuDNN reach on an H100 (Shah et al., "FlashAttention-3", 2024: some 0.6 forward and 0.55
# backward with heads of 128). The tables have no row of it.
_CUDNN = AttentionRate(
    compute_fraction=0.75, prologue_keys=77, forward_cycles=0.045, backward_cycles=0.15,
    log_sigma=0.25,
)  # fmt: skip
# Other vendors have their own kernels (AOTriton on CDNA), assumed to reach half of flash.
# Judgement.
_ELSEWHERE = AttentionRate(
    compute_fraction=0.45, prologue_keys=77, forward_cycles=0.15, backward_cycles=0.50,
    log_sigma=0.45,
)  # fmt: skip


def implementation_on(device: DeviceSpec, variant: str) -> str:
    """Return the variant that ``device`` runs: one implementation, and the direction.

    Args:
        device: Device that runs the kernel.
        variant: Variant of an attention kernel.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend: cuDNN comes
    first on Hopper and datacenter Blackwell, in torch 2.10 and later; then flash.
    """
    candidates = variant.removesuffix(BACKWARD).split("|")
    direction = BACKWARD if variant.endswith(BACKWARD) else ""
    missing = {
        "cudnn": not _has_newer_units(device),
        "flash": device.launch_generation not in _FLASH_GENERATIONS,
    }
    return next((c for c in candidates if not missing.get(c)), candidates[-1]) + direction


def rate_of(device: DeviceSpec, variant: str) -> AttentionRate:
    """Return the rate on ``device`` of an implementation, named as by `implementation_on`."""
    if device.vendor != "nvidia":
        return _ELSEWHERE
    implementation = variant.removesuffix(BACKWARD)
    if implementation == "efficient":
        return _EFFICIENT
    if implementation == "cudnn" and _has_newer_units(device):
        return _CUDNN
    # On Ampere and Ada, cuDNN is as fast as flash within 10 %: A100, three rows.
    return _FLASH_ON_NEWER_UNITS if _has_newer_units(device) else _FLASH


def _has_newer_units(device: DeviceSpec) -> bool:
    """Return whether matrix units compute for a group of warps: sm90 and sm100, not sm120."""
    if device.launch_generation == "hopper":
        return True
    return device.launch_generation == "blackwell" and device.market == "datacenter"


_PREFIX = "small_"

# Largest number of hidden units, forward and backward, of plain layers and of those with gates.
_MOST_UNITS = {"rnn": (384, 256), "lstm": (192, 128), "gru": (192, 128)}

# Cycles of a time step forward. bf16 has no entry since cuDNN has no such kernel for it, and fp64
# has none since torch does not choose it. Source: one layer of 64 units, 50 steps, batch 32, on an
# H200 (torch 2.11, cuDNN 9.19), LSTM and GRU: 0.96 µs a step in fp32, 1.46 to 1.50 in fp16; in bf16
# 6.6 to 8.5, the same as layers of 256 units. TF32 was not measured and is assumed to equal fp32.
_STEP_CYCLES = {Precision.FP32: 1_900, Precision.TF32: 1_900, Precision.FP16: 2_900}
# Judgement: no measurement isolates it.
_BACKWARD_FACTOR = 2

# torch requires compute capability 6.0, which came with Pascal.
_GENERATIONS_BEFORE = ("kepler", "maxwell")


def in_one_kernel(kernel: Kernel, *, hidden_size: int, num_sweeps: int) -> Kernel:
    """Return the time steps of a layer as current software runs them.

    Args:
        kernel: Kernel with a launch per time step; without packed sequences or a projection.
        hidden_size: Hidden units of the layer.
        num_sweeps: Layers times directions.
    """
    name, _, direction = kernel.variant.partition("_")
    is_small = hidden_size <= _MOST_UNITS[name][direction == "backward"]
    if not is_small or kernel.precision not in _STEP_CYCLES:
        return kernel
    return msgspec.structs.replace(
        kernel,
        variant=_PREFIX + kernel.variant,
        launches=num_sweeps,
        num_steps=kernel.launches // num_sweeps,
    )


def is_in_one_kernel(variant: str) -> bool:
    """Return whether each launch of such a kernel runs all time steps."""
    return variant.startswith(_PREFIX)


def step_by_step(kernel: Kernel) -> Kernel:
    """Return a kernel with a launch for each time step, as older software runs it."""
    if not is_in_one_kernel(kernel.variant):
        return kernel
    return msgspec.structs.replace(
        kernel,
        variant=kernel.variant.removeprefix(_PREFIX),
        launches=kernel.launches * kernel.num_steps,
        num_steps=1,
    )


def steps_on(kernel: Kernel, device: DeviceSpec) -> Kernel:
    """Return the time steps as ``device`` runs them."""
    is_able = device.vendor == "nvidia" and device.launch_generation not in _GENERATIONS_BEFORE
    return kernel if is_able else step_by_step(kernel)


def step_cycles(kernel: Kernel) -> float:
    """Return the cycles that a time step of such a kernel waits besides its arithmetic.

    Latencies follow the clock, not the number of units.
    """
    factor = _BACKWARD_FACTOR if kernel.variant.endswith("backward") else 1
    return float(factor * _STEP_CYCLES[kernel.precision])


def variant_on(kernel: Kernel, device: DeviceSpec) -> str:
    """Return the variant of ``kernel`` that ``device`` runs, if the step leaves it open."""
    if kernel.family is Family.RECURRENT:
        return steps_on(kernel, device).variant
    is_attention = kernel.family is Family.ATTENTION
    return implementation_on(device, kernel.variant) if is_attention else kernel.variant


# Channels of the groups that share a tile. Source: timm's ResNeXts in inference under autocast,
# torch 2.4, in both memory formats, against its ResNets: 64 fits the RTX 3090 and the RTX 4090
# equally, each without the other; with 32 it takes 1.2 times as long, with 128 1.5 times.
_PACKED_CHANNELS = 64


def packed_groups(kernel: Kernel) -> Kernel:
    """Return a grouped convolution as one product, over the channels that share a tile."""
    is_weight = kernel.variant.endswith("backward_weight")
    channels = kernel.m if is_weight else kernel.n
    num_together = max(1, min(kernel.batch, _PACKED_CHANNELS // max(1, channels)))
    packed = msgspec.structs.replace(kernel, batch=1, flop=kernel.flop * num_together)
    m, n, k, groups = kernel.m, kernel.n, kernel.k, kernel.batch
    if is_weight:
        return msgspec.structs.replace(packed, m=m * groups, n=n * num_together)
    return msgspec.structs.replace(packed, n=n * groups, k=k * num_together)
