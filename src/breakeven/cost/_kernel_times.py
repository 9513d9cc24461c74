"""Kernels on devices: how long each takes, how sure that is, and what limits it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.cost._arithmetic import device_arrays, resolve_arithmetic, suits_matrix_units
from breakeven.cost._efficiency import Arithmetic, EfficiencyTable, load_efficiencies
from breakeven.cost._kernel import Family, Kernel
from breakeven.cost._roofline import (
    EfficiencyArrays,
    WorkArrays,
    conversion_ns,
    flat_compute_ns,
    memory_ns,
    tiled_compute_ns,
)
from breakeven.cost._teaching import taught_efficiency
from breakeven.device import DeviceSpec

# In a step, what a kernel reads was partly just written by the one before (activations, in the
# cache) and partly last used a step ago (parameters, saved activations: not there).
STEP_WARM_FRACTION = 0.5

_TILED = frozenset(
    {Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Times of kernels on devices; each array has shape (num_kernels, num_devices).

    Args:
        time_ns: Device time of the kernel, all its launches included.
        log_sigma: Standard deviation of the logarithm of the time.
        shared_log_sigma: The part of it that all kernels on the device share; the rest belongs to
            the sizes of the kernel and averages out over different ones.
        is_memory_bound: Whether moving the bytes takes longer than the arithmetic.
    """

    time_ns: NDArray[np.float64]
    log_sigma: NDArray[np.float64]
    shared_log_sigma: NDArray[np.float64]
    is_memory_bound: NDArray[np.bool_]


def kernel_times(
    kernels: Sequence[Kernel],
    devices: Sequence[DeviceSpec],
    *,
    efficiencies: EfficiencyTable | None = None,
    warm_fraction: float = STEP_WARM_FRACTION,
) -> KernelTimes:
    """Return the time of every kernel on every device.

    A kernel takes the longer of its arithmetic and its traffic, plus a floor per launch, plus a
    change of memory format where the units that compute need one.

    Args:
        kernels: Equal ones are computed once.
        devices: Their launch generation must be known to `launch_costs`.
        efficiencies: Calibration; the one that ships with the package by default.
        warm_fraction: Share of a small working set that is in the cache already.
    """
    table = load_efficiencies() if efficiencies is None else efficiencies
    distinct = list(dict.fromkeys(kernels))
    shape = (len(distinct), len(devices))
    time_ns = np.zeros(shape)
    log_sigma, shared_log_sigma = np.zeros(shape), np.zeros(shape)
    is_memory_bound = np.zeros(shape, dtype=np.bool_)
    for rows in _groups(distinct).values():
        members = [distinct[row] for row in rows]
        first = members[0]
        by_arithmetic: dict[Arithmetic, list[int]] = {}
        for column, device in enumerate(devices):
            arithmetic = arithmetic_of(first, device)
            by_arithmetic.setdefault(arithmetic, []).append(column)
        for arithmetic, columns in by_arithmetic.items():
            chosen = [devices[column] for column in columns]
            taught = taught_efficiency(table, chosen, first.family, first.variant, arithmetic)
            group = KernelGroup(members, chosen)
            cells = np.ix_(rows, columns)
            time_ns[cells], is_memory_bound[cells] = group.times(
                taught.arrays, warm_fraction=warm_fraction
            )
            log_sigma[cells] = taught.log_sigma
            shared_log_sigma[cells] = taught.shared_log_sigma
    position = {kernel: row for row, kernel in enumerate(distinct)}
    order = np.array([position[kernel] for kernel in kernels], dtype=np.intp)
    return KernelTimes(
        time_ns=time_ns[order],
        log_sigma=log_sigma[order],
        shared_log_sigma=shared_log_sigma[order],
        is_memory_bound=is_memory_bound[order],
    )


def arithmetic_of(kernel: Kernel, device: DeviceSpec) -> Arithmetic:
    """Return which units of ``device`` compute ``kernel``."""
    return resolve_arithmetic(kernel, device).arithmetic


class KernelGroup:
    """Kernels that share a cost model, on devices that compute them with the same kind of units.

    Args:
        kernels: With the same `group_key`.
        devices: Where they run.
    """

    def __init__(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> None:
        first = kernels[0]
        self._work = _work_arrays(kernels)
        self._limits = device_arrays(devices, first)
        self._converts = arithmetic_of(first, devices[0]) == "tensor"
        self._compute_ns = tiled_compute_ns if _is_tiled(first) else flat_compute_ns

    def times(
        self, efficiency: EfficiencyArrays, *, warm_fraction: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return time in nanoseconds and whether memory bounds it, (num_kernels, num_devices)."""
        traffic_ns = memory_ns(self._work, self._limits, efficiency, warm_fraction=warm_fraction)
        compute_ns = self._compute_ns(self._work, self._limits, efficiency)
        other_ns = self._work.launches * self._limits.floor_ns
        is_memory_bound = traffic_ns >= compute_ns
        if self._converts:
            converting_ns = conversion_ns(self._work, self._limits)
            other_ns = other_ns + converting_ns
            is_memory_bound = traffic_ns + converting_ns >= compute_ns
        return np.maximum(traffic_ns, compute_ns) + other_ns, is_memory_bound


def _work_arrays(kernels: Sequence[Kernel]) -> WorkArrays:
    rows = [
        (k.flop, k.num_bytes, k.m, k.n, k.k, k.batch, k.launches, k.conversion_bytes)
        for k in kernels
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, 8, 1)
    return WorkArrays(
        flop=columns[:, 0],
        num_bytes=columns[:, 1],
        m=columns[:, 2],
        n=columns[:, 3],
        k=columns[:, 4],
        batch=columns[:, 5],
        launches=columns[:, 6],
        conversion_bytes=columns[:, 7],
    )


def _is_tiled(kernel: Kernel) -> bool:
    is_matrix = kernel.family in _TILED and not kernel.variant.startswith("depthwise")
    return is_matrix and min(kernel.m, kernel.n, kernel.k, kernel.batch) > 0


def group_key(kernel: Kernel) -> Hashable:
    """Return what kernels must have in common to share a `KernelGroup`."""
    return (
        kernel.family,
        kernel.variant,
        kernel.precision,
        _is_tiled(kernel),
        suits_matrix_units(kernel),
    )


def _groups(kernels: Sequence[Kernel]) -> dict[Hashable, list[int]]:
    """Return the rows of kernels that share a cost model."""
    groups: dict[Hashable, list[int]] = {}
    for row, kernel in enumerate(kernels):
        groups.setdefault(group_key(kernel), []).append(row)
    return groups
