"""Fused attention: which implementation a device runs, and what it reaches.

The ``variant`` of an attention kernel names the implementations that torch may take, in the order
of its preference, joined by ``|``, then ``_backward``: ``cudnn|flash|efficient_backward``. The
device decides, so that one recorded step serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from breakeven.device import DeviceSpec

BACKWARD = "_backward"

# A block of the kernels takes so many queries, and computes the scores of whole blocks of keys.
BLOCK = 128

# Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the hardware support of flash (sm80
# to sm121; CDNA by AOTriton) and of efficient attention (all).
_FLASH_GENERATIONS = frozenset({"ampere", "ada", "hopper", "blackwell", "cdna"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """What an implementation reaches on matrix units.

    Args:
        compute_fraction: Share of their rate, in the products alone.
        prologue_keys: Keys that each block of queries takes longer for its start and end.
        forward_cycles: Cycles of an SM for the softmax of one score: its exponential, and the
            rescaling of what was summed up before.
        backward_cycles: The same of the backward pass, which computes the score once more.
        log_sigma: Standard deviation of the logarithm of what is taken for known.
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
# Datacenter Blackwell is taken to be alike; no row of either was seen.
_FLASH_ON_NEWER_UNITS = replace(_FLASH, compute_fraction=0.60, log_sigma=0.20)
# Source: xformers' kernels, which torch's efficient attention is, in the same figures: A100,
# forward and backward in one time. Older GPUs: transferred.
_EFFICIENT = AttentionRate(
    compute_fraction=0.45, prologue_keys=15, forward_cycles=0.18, backward_cycles=0.66,
    log_sigma=0.15,
)  # fmt: skip
# Hopper and datacenter Blackwell: judgement, from the share of the rate that FlashAttention-3 and
# cuDNN reach on an H100 (Shah et al., "FlashAttention-3", 2024: some 0.6 forward and 0.55 backward
# with heads of 128). No row of the tables times it.
_CUDNN = AttentionRate(
    compute_fraction=0.75, prologue_keys=77, forward_cycles=0.045, backward_cycles=0.15,
    log_sigma=0.25,
)  # fmt: skip
# Other vendors have kernels of their own (AOTriton on CDNA), taken to reach half of flash.
# Judgement.
_ELSEWHERE = AttentionRate(
    compute_fraction=0.45, prologue_keys=77, forward_cycles=0.15, backward_cycles=0.50,
    log_sigma=0.45,
)  # fmt: skip


def implementation_on(device: DeviceSpec, variant: str) -> str:
    """Return the variant that ``device`` runs: one implementation, and the direction.

    Args:
        device: Where the kernel runs.
        variant: Of an attention kernel.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend: cuDNN comes
    first on Hopper and datacenter Blackwell, in torch 2.10 and later; then flash.
    """
    candidates = variant.removesuffix(BACKWARD).split("|")
    direction = BACKWARD if variant.endswith(BACKWARD) else ""
    return next((c for c in candidates if _has(device, c)), candidates[-1]) + direction


def _has(device: DeviceSpec, implementation: str) -> bool:
    if implementation == "cudnn":
        return _has_newer_units(device)
    return implementation != "flash" or device.launch_generation in _FLASH_GENERATIONS


def rate_of(device: DeviceSpec, variant: str) -> AttentionRate:
    """Return what one implementation, as `implementation_on` names it, reaches on ``device``."""
    if device.vendor != "nvidia":
        return _ELSEWHERE
    implementation = variant.removesuffix(BACKWARD)
    if implementation == "efficient":
        return _EFFICIENT
    if implementation == "cudnn" and _has_newer_units(device):
        return _CUDNN
    # On Ampere and Ada, cuDNN is as fast as flash within a tenth: A100, three rows.
    return _FLASH_ON_NEWER_UNITS if _has_newer_units(device) else _FLASH


def _has_newer_units(device: DeviceSpec) -> bool:
    """Return whether matrix units compute for a group of warps: sm90 and sm100, not sm120."""
    if device.launch_generation == "hopper":
        return True
    return device.launch_generation == "blackwell" and device.market == "datacenter"
