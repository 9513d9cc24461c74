"""Effects that whole steps showed on costs: named factors, each on one kind of time.

A kernel inside a step differs from the kernel of a benchmark, and a host from a loop over one
operator. Each time is multiplied by the product of the effects that apply to it, from the general
(all convolutions on tensor cores) to the particular (this board, this machine). An unseen effect
is 1. They are fitted together as Gaussian random effects on logarithms: general effects explain
the common part, and particular ones only the remainder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache

import msgspec

from breakeven.cost.efficiency import read_shipped
from breakeven.cost.host_cost import HostPart
from breakeven.cost.implementations import is_in_one_kernel
from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.roofline import resolve_arithmetic
from breakeven.device import DeviceSpec, Precision, find_device


class Era(StrEnum):
    """Software of a few years; its kernels and its host work cost about the same."""

    TORCH7 = "Torch7 and its contemporaries"
    TORCH_0 = "torch up to 1.0"
    TORCH_1_EARLY = "torch 1.1 to 1.6"
    TORCH_1 = "torch 1.7 to 1.12"
    TORCH_1_LATE = "torch 1.13"
    TORCH_2 = "torch 2"
    UNKNOWN = "unknown"

    @property
    def is_before_torch_2(self) -> bool:
        """Return whether it is a torch that zeroes gradients in place by default.

        torch 2.0 and later release them instead. Torch7 is a different program, and unknown
        software counts as current torch.
        """
        return self in (Era.TORCH_0, Era.TORCH_1_EARLY, Era.TORCH_1, Era.TORCH_1_LATE)

    @property
    def is_before_cudnn_8(self) -> bool:
        """Return whether its convolutions are those of cuDNN 7 or earlier.

        Those are slower in fp64, and compute a product for each group of channels. Unknown
        software counts as current torch.
        """
        return self in (Era.TORCH7, Era.TORCH_0, Era.TORCH_1_EARLY)

    @property
    def has_small_recurrence(self) -> bool:
        """Return whether cuDNN runs all time steps of a small recurrent layer in one kernel.

        torch chooses it from 1.10 on, with cuDNN 8.2.1 or later: most releases of the era that
        begins with 1.7 lack one or the other. Unknown software counts as current torch.
        """
        return self in (Era.TORCH_1_LATE, Era.TORCH_2, Era.UNKNOWN)


def era_of(framework: str) -> Era:
    """Return the era of a framework.

    Args:
        framework: As tables write it: ``torch 1.4 CUDA 10.0 cuDNN 7600``, ``torch NGC 20.10
            (1.7.0a0) CUDA 11.1``, ``torch (version not recorded) CUDA 10.2``, ``torch7``.
            Without a version of torch, CUDA's decides; without either it is unknown.
    """
    words = framework.casefold()
    if re.match(r"(torch7|caffe|cntk|mxnet|tensorflow 0|theano)", words):
        return Era.TORCH7
    if not re.match(r"(py)?torch\b", words):
        return Era.UNKNOWN
    own, _, cuda = words.partition("cuda")
    own = re.sub(r"(?:ngc|rocm|cudnn|python)\s*[0-9.]+", "", own)
    if versions := re.findall(r"(\d+)\.(\d+)", own):
        version = max((int(major), int(minor)) for major, minor in versions)
        return next((era for last, era in _TORCH_ERAS if version <= last), Era.TORCH_2)
    if found := re.match(r"\s*(\d+)\.(\d+)", cuda):
        version = (int(found[1]), int(found[2]))
        return next((era for later, era in _CUDA_ERAS if version < later), Era.TORCH_2)
    return Era.UNKNOWN


# Last version of each era. Changes after them: cuDNN 7's first tensor-core kernels, cuDNN 8, the
# allocator and dispatcher of the 1.13 containers, and torch 2. NGC containers show the torch
# version in brackets.
_TORCH_ERAS = (
    ((1, 0), Era.TORCH_0), ((1, 6), Era.TORCH_1_EARLY), ((1, 12), Era.TORCH_1),
    ((1, 99), Era.TORCH_1_LATE),
)  # fmt: skip
# The first CUDA version after each era.
_CUDA_ERAS = (
    ((10, 0), Era.TORCH_0), ((10, 3), Era.TORCH_1_EARLY), ((11, 7), Era.TORCH_1),
)  # fmt: skip

STEP_EFFECTS_VERSION = 2

# (kind, its subject): ("chip", "GA100"), ("units+generation", "convolution", "tensor fp16", ...).
EffectKey = tuple[str, ...]

# Host and device slow each other down while both work: launches into a busy queue take longer, and
# a device that has caught up with the host waits for single kernels. This fraction of the time in
# which both work is lost, before any effect.
TYPICAL_OVERLAP_LOSS = 0.3

_MEMORY_BOUND = frozenset({
    Family.ELEMENTWISE, Family.REDUCTION, Family.SOFTMAX, Family.GATHER, Family.POOLING,
    Family.SORT, Family.NORMALIZATION,
})  # fmt: skip


class StepEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One effect.

    Args:
        kind: Kind of effect: ``class``, ``chip``, ``host``, ...
        of: Its subject, in the words of the kind.
        log_factor: Logarithm of the factor.
    """

    kind: str
    of: tuple[str, ...]
    log_factor: float


_PERFECT_OVERLAP = StepEffect(kind="overlap", of=(), log_factor=-30.0)


class KernelSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on the uncertainty of kernels, by the source of their error.

    Args:
        compute: Kernels whose arithmetic takes longer than their traffic.
        memory: The others.
        fp64: Kernels in fp64, whatever limits them.
    """

    compute: float
    memory: float
    fp64: float

    @classmethod
    def uniform(cls, scale: float) -> KernelSpread:
        """Return the same factor for all."""
        return cls(compute=scale, memory=scale, fp64=scale)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of step predictions, from rows that were left out of the fit.

    Args:
        calibrated: Factors for kernels on a GPU with whole steps.
        unseen: The same on any other GPU, see `StepEffects.kernel_spread`.
        known_host_log_sigma: Standard deviation of the logarithm of the host's time on a machine
            with steps in the fit.
        unknown_host_log_sigma: The same for any other machine that was not measured.
    """

    calibrated: KernelSpread
    unseen: KernelSpread
    known_host_log_sigma: float
    unknown_host_log_sigma: float


class StepEffects(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """All effects that whole steps showed.

    Args:
        version: Version of this format.
        provenance: Method and data of the fit.
        spread: Residual uncertainty.
        effects: Factors; those of 1 are left out.
        calibrated_on: Fingerprints of the rows in the fit.
    """

    version: int
    provenance: str
    spread: Spread
    effects: tuple[StepEffect, ...]
    calibrated_on: tuple[str, ...] = ()

    def log_factor(self, keys: Iterable[EffectKey]) -> float:
        """Return the sum of the effects with these keys; unseen ones add nothing."""
        table = _table(self)
        return math.fsum(table.get(key, 0.0) for key in keys)

    def has(self, key: EffectKey) -> bool:
        """Return whether the fit has the effect."""
        return key in _table(self)

    def kernel_spread(self, device: DeviceSpec) -> KernelSpread:
        """Return the spread of kernels on a device without its own calibration.

        The spread of unseen GPUs comes from CUDA's libraries. With each NVIDIA generation left out
        in turn, steps and operators, 0.59 (compute), 0.62 (memory) and 0.53 (fp64) sufficed. For
        another vendor's generation without a step, only the benchmarks' own errors are known:
        other libraries choose the algorithms.
        """
        if self.has(("device", device.id)):
            return self.spread.calibrated
        if device.vendor != "nvidia" and device.launch_generation not in _generations(self):
            return KernelSpread.uniform(1.0)
        return self.spread.unseen


@cache
def _table(effects: StepEffects) -> dict[EffectKey, float]:
    return {(effect.kind, *effect.of): effect.log_factor for effect in effects.effects}


@cache
def _generations(effects: StepEffects) -> frozenset[str]:
    """Return the generations of the devices with whole steps in the fit."""
    seen = {effect.of[0] for effect in effects.effects if effect.kind == "device"}
    return frozenset(find_device(device).launch_generation for device in seen)


@cache
def load_step_effects() -> StepEffects:
    """Return the effects that ship with the package."""
    return read_shipped("breakeven.cost", "step_effects.json", StepEffects, STEP_EFFECTS_VERSION)


def no_step_effects() -> StepEffects:
    """Return no effects: kernels as in benchmarks, hosts as measured, no overlap loss."""
    uniform = KernelSpread.uniform(1.0)
    return StepEffects(
        version=STEP_EFFECTS_VERSION,
        provenance="none",
        spread=Spread(
            calibrated=uniform, unseen=uniform, known_host_log_sigma=0.35,
            unknown_host_log_sigma=0.35,
        ),
        effects=(_PERFECT_OVERLAP,),
    )  # fmt: skip


def without_overlap_loss(effects: StepEffects) -> StepEffects:
    """Return the effects without the loss of overlapping host and device work."""
    rest = (effect for effect in effects.effects if not effect.kind.startswith("overlap"))
    return msgspec.structs.replace(effects, effects=(*rest, _PERFECT_OVERLAP))


def family_group(kernel: Kernel) -> str:
    """Return the group of families that share general effects with the kernel."""
    if kernel.family is Family.CONVOLUTION:
        return "depthwise" if kernel.variant.startswith("depthwise") else "convolution"
    if kernel.family in (Family.GEMM, Family.BATCHED_GEMM):
        return "gemm"
    if kernel.family is Family.NORMALIZATION:
        return "normalization"
    if kernel.family in _MEMORY_BOUND:
        return "memory"
    if is_in_one_kernel(kernel.variant):
        return "small recurrent"
    return kernel.family.value


def units_of(kernel: Kernel, device: DeviceSpec) -> str:
    """Return the kernel's units; for memory-bound families, the width of its numbers."""
    if kernel.family in _MEMORY_BOUND or kernel.variant.startswith("depthwise"):
        is_half = kernel.precision in (Precision.FP16, Precision.BF16)
        return "16 bit" if is_half else "64 bit" if kernel.precision is Precision.FP64 else "32 bit"
    return f"{resolve_arithmetic(kernel, device).arithmetic} {kernel.precision}"


def kernel_effect_keys(
    kernel: Kernel, device: DeviceSpec, *, era: Era, machine: str
) -> tuple[EffectKey, ...]:
    """Return the keys of the effects on a kernel's time beyond its floor.

    One machine affects its board by cooling, power and drivers. That effect is separate from the
    one of all boards with that chip: only the latter applies elsewhere.

    Args:
        kernel: The kernel.
        device: Device that runs it.
        era: Software.
        machine: Name of the machine whose steps may be in the fit, or empty.
    """
    group, units = family_group(kernel), units_of(kernel, device)
    family = f"{kernel.family} {kernel.variant}".strip()
    generation, chip = device.launch_generation, device.chip or device.id
    keys: tuple[EffectKey, ...] = (
        ("class", family, units),
        ("class+generation", family, units, generation),
        ("units", group, units),
        ("units+generation", group, units, generation),
        ("units+era", group, units, era),
        ("chip", chip),
        ("chip+units", chip, group, units),
        ("device", device.id),
    )
    if machine:
        return (*keys, ("machine", machine), ("machine+units", machine, group, units))
    return keys


def floor_effect_keys(kernel: Kernel, device: DeviceSpec) -> tuple[EffectKey, ...]:
    """Return the keys of the effects on the least time that each launch occupies the device."""
    return (
        ("floor",),
        ("floor+family", kernel.family.value),
        ("floor+generation", device.launch_generation),
    )


def overlap_effect_keys(*, machine: str) -> tuple[EffectKey, ...]:
    """Return the keys of the effects on the lost fraction of overlap, `TYPICAL_OVERLAP_LOSS`.

    Args:
        machine: Name of the machine whose steps may be in the fit, or empty.
    """
    return (("overlap",), ("overlap machine", machine)) if machine else (("overlap",),)


def host_effect_keys(
    part: HostPart, *, era: Era, machine: str, is_measured: bool
) -> tuple[EffectKey, ...]:
    """Return the keys of the effects on the host's time.

    Args:
        part: Kind of host work.
        era: Software.
        machine: Name of the machine whose steps may be in the fit, or empty.
        is_measured: The host's own costs were measured, so no effect applies: effects of other
            hosts trade the kinds of work off against each other.
    """
    if is_measured:
        return ()
    kind = part.value
    keys: tuple[EffectKey, ...] = ()
    if era is not Era.TORCH_2:  # the common part of hosts under current software was measured
        keys = (("host",), ("host class", kind), ("host era", era))
    if not machine:
        return keys
    phase = "backward" if kind.startswith(("backward", "accumulate")) else "forward"
    return (*keys, ("host machine", machine), ("host machine+phase", machine, phase))
