"""Times of kernels on devices, with their errors and limits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from breakeven.cost.efficiency import EfficiencyTable, load_efficiencies, transferred_efficiency
from breakeven.cost.implementations import (
    BACKWARD,
    BLOCK,
    is_in_one_kernel,
    rate_of,
    step_cycles,
    steps_on,
    variant_on,
)
from breakeven.cost.kernel import TILE_SET_NAMES, Arithmetic, Family, Kernel, TileSet
from breakeven.cost.launch_costs import replayed_floors
from breakeven.cost.roofline import (
    MATRIX_FAMILIES,
    Columns,
    DeviceArrays,
    EfficiencyArrays,
    Floats,
    WorkArrays,
    clock_headroom,
    conversion_ns,
    device_arrays,
    flat_compute_ns,
    loads_per_element,
    memory_ns,
    reached_flop_per_s,
    resolve_arithmetic,
    step_latency_ns,
    step_weights_ns,
    suits_matrix_units,
    tiled_compute_ns,
)
from breakeven.device import DeviceSpec, Precision, generation_of

# In a step, the kernel before has just written part of a kernel's inputs (activations, in the
# cache). The rest was last used a step ago (parameters, saved activations: not in the cache).
STEP_WARM_FRACTION = 0.5

# Kernels in fp64 have smaller tiles than those in fp32, since registers hold half as many numbers.
# Source: pytorch-gpu-benchmark in fp64: convolutions take the same time per FLOP at 7 pixels as at
# 224 (RTX 2080 Ti: 0.19 to 0.23 TFLOP/s for ResNet-34, ResNet-152, VGG-13 and VGG-19 in inference).
_FINE_TILES = TILE_SET_NAMES.index("8+")
_ELEMENT_BYTES = {
    Precision.FP64: 8, Precision.FP32: 4, Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes(Columns):
    """Times of kernels on devices; each array has shape (num_kernels, num_devices).

    Args:
        time_ns: Device time of the kernel, all its launches included.
        log_sigma: Standard deviation of the logarithm of the time.
        shared_log_sigma: The part of it that all kernels on the device share. The rest depends on
            the kernel's sizes and averages out over different ones.
        is_memory_bound: Whether moving the bytes takes longer than the arithmetic.
        is_latency_bound: Whether waiting takes longer than both: for the start of the kernel, and
            in recurrent layers for the previous time step.
        floor_ns: Launch part of the time, independent of the kernel's work.
        replay_ns: Launch time in a CUDA graph instead, up to the start of the next kernel.
    """

    time_ns: NDArray[np.float64]
    log_sigma: NDArray[np.float64]
    shared_log_sigma: NDArray[np.float64]
    is_memory_bound: NDArray[np.bool_]
    is_latency_bound: NDArray[np.bool_]
    floor_ns: NDArray[np.float64]
    replay_ns: NDArray[np.float64]


def kernel_times(
    kernels: Sequence[Kernel],
    devices: Sequence[DeviceSpec],
    *,
    efficiencies: EfficiencyTable | None = None,
    warm_fraction: float = STEP_WARM_FRACTION,
) -> KernelTimes:
    """Return the time of every kernel on every device.

    A kernel takes the longer of its arithmetic and its traffic, plus a floor per launch, plus a
    change of memory format if the computing units need one.

    Args:
        kernels: Equal ones are computed once.
        devices: Their launch generation must be known to `launch_costs`.
        efficiencies: Calibration; the one that ships with the package by default.
        warm_fraction: Fraction of a small working set that is in the cache already.
    """
    table = load_efficiencies() if efficiencies is None else efficiencies
    distinct = list(dict.fromkeys(kernels))
    shape = (len(distinct), len(devices))
    time_ns, log_sigma, shared_log_sigma = np.zeros((3, *shape))
    is_memory_bound, is_latency_bound = np.zeros((2, *shape), dtype=np.bool_)
    for rows in _groups(distinct).values():
        members = [distinct[row] for row in rows]
        first = members[0]
        alike: dict[tuple[Arithmetic, str], list[int]] = {}
        for column, device in enumerate(devices):
            key = arithmetic_of(first, device), variant_on(first, device)
            alike.setdefault(key, []).append(column)
        for (arithmetic, variant), columns in alike.items():
            chosen = [devices[column] for column in columns]
            efficiency = transferred_efficiency(table, chosen, first.family, variant, arithmetic)
            cells = np.ix_(rows, columns)
            time_ns[cells], is_memory_bound[cells], is_latency_bound[cells] = KernelGroup(
                members, chosen
            ).times(efficiency.arrays, warm_fraction=warm_fraction)
            log_sigma[cells] = efficiency.log_sigma
            shared_log_sigma[cells] = efficiency.shared_log_sigma
    launches = np.array([[float(kernel.launches)] for kernel in distinct]).reshape(-1, 1)
    replayed = np.array([[replayed_floors(kernel)] for kernel in distinct]).reshape(-1, 1)
    generations = [generation_of(device) for device in devices]
    floor_ns = launches * np.array([[each.floor_ns for each in generations]])
    gap_ns = launches * np.array([[each.gap_ns for each in generations]])
    position = {kernel: row for row, kernel in enumerate(distinct)}
    return KernelTimes(
        time_ns=time_ns,
        log_sigma=log_sigma,
        shared_log_sigma=shared_log_sigma,
        is_memory_bound=is_memory_bound,
        is_latency_bound=is_latency_bound,
        floor_ns=floor_ns,
        replay_ns=replayed * (floor_ns + gap_ns),
    ).take(np.array([position[kernel] for kernel in kernels], dtype=np.intp))


def datasheet_ns(kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> NDArray[np.float64]:
    """Return the least time of each kernel by the datasheet, (num_kernels, num_devices).

    Arithmetic: all units at the datasheet's rate, or at the reached rate if that is higher, with
    the algorithm of least FLOP. Traffic: all bytes beyond the last-level cache, at the datasheet's
    bandwidth.
    """
    least_ns = np.zeros((len(kernels), len(devices)))
    num_bytes = np.array([kernel.num_bytes for kernel in kernels])
    plain_flop = np.array([kernel.flop for kernel in kernels])
    least_flop = np.array([min(k.flop, *(a.flop for a in (k, *k.algorithms))) for k in kernels])
    groups = _groups(kernels)
    for column, device in enumerate(devices):
        missed = np.maximum(num_bytes - device.l2_bytes, 0.0) / device.memory_bytes_per_s
        for rows in groups.values():
            resolved = resolve_arithmetic(kernels[rows[0]], device)
            rate = max(resolved.flop_per_s, reached_flop_per_s(resolved, device))
            flop = least_flop if resolved.arithmetic == "vector" else plain_flop
            least_ns[rows, column] = 1e9 * np.maximum(flop[rows] / rate, missed[rows])
    return least_ns


# Instructions on plain units per FLOP of a forward convolution in fp64 before cuDNN 8, besides its
# arithmetic: indices, and operands from shared memory. Gradients needed none.
# Source: pytorch-gpu-benchmark in fp64, torch 0.4 to 1.4, ResNet-18 to ResNet-152 and VGG-19. At
# 1.8 GHz an SM takes, in cycles per FLOP, forward and backward: TITAN V 0.20 to 0.53, 0.04 to
# 0.08; GTX 1080 Ti 0.21 to 0.30, 0.15 to 0.18; RTX 2080 Ti 0.47 to 0.59, 0.26 to 0.37. Their units
# need 0.016, 0.125 and 0.25. 12 instructions on 64 units (128 of the GTX 1080 Ti) take 0.19 (0.09).
_OLD_FP64_INSTRUCTIONS = 12


def old_fp64_ns(kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> NDArray[np.float64]:
    """Return the extra time of kernels before cuDNN 8, (num_kernels, num_devices).

    It is 0 except for forward convolutions in fp64 on NVIDIA's devices.
    """
    flop = [
        kernel.flop
        if kernel.family is Family.CONVOLUTION
        and kernel.precision is Precision.FP64
        and not kernel.variant.startswith("depthwise")
        and "backward" not in kernel.variant
        else 0.0
        for kernel in kernels
    ]
    # A unit issues one instruction per cycle, which counts as two FLOP.
    ns_per_flop = [
        _OLD_FP64_INSTRUCTIONS
        * 2e9
        / (device.peak_flop_per_s[Precision.FP32] * clock_headroom(device))
        * (device.vendor == "nvidia")
        for device in devices
    ]
    return np.outer(flop, ns_per_flop)


def arithmetic_of(kernel: Kernel, device: DeviceSpec) -> Arithmetic:
    """Return the units of ``device`` that compute ``kernel``."""
    return resolve_arithmetic(kernel, device).arithmetic


# Wait of a factorization's column for the one before: threads of a block wait for a root or a
# division and for shared memory. Judgement; the error is that of work without measurements.
_WAIT_CYCLES = 1_000.0


class KernelGroup:
    """Kernels with the same cost model, on devices that compute them with the same kind of units.

    Args:
        kernels: Kernels with the same `group_key`.
        devices: Devices that run them.
    """

    def __init__(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> None:
        self._has_time_steps = kernels[0].family is Family.RECURRENT
        if self._has_time_steps:
            kernels = [steps_on(kernel, devices[0]) for kernel in kernels]
        first = kernels[0]
        arithmetic = arithmetic_of(first, devices[0])
        self._work = _work_arrays(kernels)
        self._limits = device_arrays(devices, first)
        self._converts = arithmetic == "tensor"
        if arithmetic == "vector":
            aligned = np.zeros_like(self._work.loads_per_element)
            self._work = replace(self._work, loads_per_element=aligned)
        self._is_tiled = _is_tiled(first)
        # Cycles that each step within a kernel waits; None if the kernel has no steps.
        self._step_cycles = None
        if first.family is Family.LINALG:
            self._step_cycles = _WAIT_CYCLES
        elif is_in_one_kernel(first.variant):
            self._step_cycles = step_cycles(first)
        self._element_bytes = _ELEMENT_BYTES[first.precision]
        self._has_fine_tiles = first.precision is Precision.FP64
        self._is_backward = first.variant.endswith(BACKWARD)
        self._softmax_cycles: Floats | None = None
        if first.family is Family.ATTENTION and arithmetic == "tensor" and self._is_tiled:
            rates = [rate_of(device, variant_on(first, device)) for device in devices]
            name = "backward_cycles" if self._is_backward else "forward_cycles"
            self._softmax_cycles = np.array([[getattr(rate, name) for rate in rates]])
        # cuDNN splits the long contraction of a weight's gradient, and hardly any other.
        self._may_split = (
            first.family is not Family.CONVOLUTION or "backward_weight" in first.variant
        )
        # Other algorithms of each kernel: the work, the traffic of its workspace, and the tiles.
        self._others: list[tuple[WorkArrays, Floats, TileSet | None]] = []
        algorithms = [k.algorithms for k in kernels] if arithmetic == "vector" else []
        for some in zip(*algorithms, strict=True):
            rows = [(a.flop, a.m, a.n, a.k, a.batch, a.workspace_bytes) for a in some]
            flop, m, n, k, batch, workspace = np.array(rows, dtype=np.float64).T[:, :, np.newaxis]
            work = replace(self._work, flop=flop, m=m, n=n, k=k, batch=batch)
            self._others.append((work, workspace, some[0].tiles))

    def times(
        self, efficiency: EfficiencyArrays, *, warm_fraction: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the times in nanoseconds, and whether memory or latency bounds them.

        Each array has shape (num_kernels, num_devices), as in `KernelTimes`.
        """
        if self._has_fine_tiles:
            efficiency = replace(
                efficiency, tile_set=np.full_like(efficiency.tile_set, _FINE_TILES)
            )
        fixed_ns = self._limits.floor_ns
        traffic_ns = memory_ns(self._work, self._limits, efficiency, warm_fraction=warm_fraction)
        if self._step_cycles is not None:
            fixed_ns = fixed_ns + self._work.num_steps * self._step_cycles * self._limits.cycle_ns
        elif self._has_time_steps:
            fixed_ns = fixed_ns + step_latency_ns(self._limits, efficiency)
            traffic_ns = traffic_ns + step_weights_ns(
                self._work, self._limits, efficiency, element_bytes=self._element_bytes
            )
            efficiency = replace(efficiency, prologue_k=np.zeros_like(efficiency.prologue_k))
        if self._softmax_cycles is not None:
            compute_ns = _fused_attention_ns(
                self._work,
                self._limits,
                efficiency,
                is_backward=self._is_backward,
                softmax_cycles=self._softmax_cycles,
            )
        elif self._is_tiled:
            compute_ns = tiled_compute_ns(
                self._work, self._limits, efficiency, may_split=self._may_split
            )
        else:
            compute_ns = flat_compute_ns(self._work, self._limits, efficiency)
        is_memory_bound = traffic_ns >= compute_ns
        time_ns = np.maximum(traffic_ns, compute_ns)
        for work, workspace_bytes, tiles in self._others:
            other_ns = tiled_compute_ns(
                work, self._limits, efficiency, may_split=False, own_tiles=tiles
            )
            dram_bytes_per_s = self._limits.bytes_per_s * efficiency.memory_fraction
            workspace_ns = 1e9 * workspace_bytes / dram_bytes_per_s
            is_other_memory_bound = traffic_ns + workspace_ns >= other_ns
            other_ns = np.maximum(traffic_ns, other_ns) + workspace_ns
            is_faster = other_ns < time_ns
            is_memory_bound = np.where(is_faster, is_other_memory_bound, is_memory_bound)
            time_ns = np.where(is_faster, other_ns, time_ns)
        if self._converts:
            time_ns = time_ns * self._work.matrix_share
            converting_ns = conversion_ns(self._work, self._limits)
            is_memory_bound = traffic_ns + converting_ns >= compute_ns
            time_ns += converting_ns
        waiting_ns = self._work.launches * fixed_ns
        return time_ns + waiting_ns, is_memory_bound, waiting_ns > time_ns


# Concurrent blocks of fused attention on an SM.
_ATTENTION_BLOCKS = 2


def _fused_attention_ns(
    work: WorkArrays,
    limits: DeviceArrays,
    efficiency: EfficiencyArrays,
    *,
    is_backward: bool,
    softmax_cycles: Floats,
) -> Floats:
    """Return the time of fused attention on matrix units, in waves of blocks over the SMs.

    A block processes `BLOCK` rows against ``k`` others, fewer with a causal mask; its start and
    end cost ``prologue_k`` more. Each pair costs its products on matrix units plus its softmax
    on plain units.
    """
    pair_flop = 2.0 * (5 if is_backward else 2) * work.n
    num_others = work.flop / (pair_flop * work.m * work.batch) + efficiency.prologue_k
    sm_flop_per_s = limits.flop_per_s * efficiency.compute_fraction / limits.num_sms
    pair_ns = 1e9 * pair_flop / sm_flop_per_s + softmax_cycles * limits.cycle_ns
    blocks_at_once = _ATTENTION_BLOCKS * limits.num_sms
    waves = np.ceil(np.ceil(work.m / BLOCK) * work.batch / blocks_at_once)
    return waves * _ATTENTION_BLOCKS * BLOCK * num_others * pair_ns


def _work_arrays(kernels: Sequence[Kernel]) -> WorkArrays:
    def column(values: list[float]) -> Floats:
        return np.array(values, dtype=np.float64).reshape(-1, 1)

    own = [field.name for field in fields(WorkArrays) if field.name != "loads_per_element"]
    return WorkArrays(
        **{name: column([getattr(kernel, name) for kernel in kernels]) for name in own},
        loads_per_element=column([loads_per_element(kernel) for kernel in kernels]),
    )


def _is_tiled(kernel: Kernel) -> bool:
    is_matrix = kernel.family in MATRIX_FAMILIES and not kernel.variant.startswith("depthwise")
    # The latency of a time step within one kernel includes the losses of its tiles.
    is_matrix = is_matrix and not is_in_one_kernel(kernel.variant)
    return is_matrix and min(kernel.m, kernel.n, kernel.k, kernel.batch) > 0


def group_key(kernel: Kernel) -> Hashable:
    """Return the properties that kernels must share to be in one `KernelGroup`."""
    return (
        kernel.family,
        kernel.variant,
        kernel.precision,
        _is_tiled(kernel),
        suits_matrix_units(kernel),
        tuple(algorithm.tiles for algorithm in kernel.algorithms),
    )


def _groups(kernels: Sequence[Kernel]) -> dict[Hashable, list[int]]:
    """Return the row numbers of kernels, grouped by cost model."""
    groups: dict[Hashable, list[int]] = {}
    for row, kernel in enumerate(kernels):
        groups.setdefault(group_key(kernel), []).append(row)
    return groups
