"""What scenarios make of costs: the times of rows, and how far kernels are off within a step.

Arrays have one axis each for rows R, programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.cost import REPLAYED_LOG_SIGMA, KernelTimes
from breakeven.simulate.cost_table import (
    IS_COPY,
    Array,
    CostTable,
    Indices,
    KernelTable,
    Mask,
    RowKind,
    Rows,
)
from breakeven.simulate.program import Bound, Scenario

# Pageable copies pass through a staging buffer at the pace of the host's memcpy, which varies
# between machines by about a third in either direction (90 %).
_COPY_LOG_SIGMA = 0.18


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What scenarios make of costs: factors, and the times that do not depend on the event.

    Args:
        scale: 0 for a resource that is free of charge, 1 otherwise: (K).
        kernel_deviation: Standard deviations of the kernels: (K).
        host: Factor of the host's own time, by kind of row: (kinds, K).
        own: Factor of a row's own time, by kind: (kinds, K).
        launch_ns: The host's time of one launch, by kind: (kinds, D, K).
        sync_ns: The host's time of a sync on an idle device: (D, K).
        latency_ns: From a launch to its start on an idle device: (D, K).
        gap_ns: From the end of a kernel to the start of the next: (D, K).
        is_captured: Whether a graph launches all kernels: (K).
        replay_factor: Factor of what launches take in a graph: (D, K).
        lead_ns: The host's time before the first event: that to launch a captured step, or its own
            outside of operators: (D, K).
    """

    scale: dict[Bound, Array]
    kernel_deviation: Array
    host: Array
    own: Array
    launch_ns: Array
    sync_ns: Array
    latency_ns: Array
    gap_ns: Array
    is_captured: Mask
    replay_factor: Array
    lead_ns: Array

    def work_ns(self, rows: Rows) -> Array:
        """Return the host's work, launches apart: (R, P, 1, K)."""
        return (rows.host_ns[..., None] * self.host[rows.kind][:, None])[:, :, None]

    def row_costs(self, rows: Rows, kernels: KernelTable, *, is_alone: bool) -> tuple[Array, Array]:
        """Return what one launch takes the host, (R, 1, D, K), and the rows' own time.

        Args:
            rows: All that have a kernel, and others.
            kernels: The kernels.
            is_alone: Each kernel deviates as it would by itself, not as one of the step.
        """
        own_ns = np.zeros((*rows.device_ns.shape, self.own.shape[1]))
        (others,) = np.nonzero((self.own[rows.kind] > 0).any(axis=1))
        factor = self.own[rows.kind[others]][:, None, None]
        own_ns[others] = rows.device_ns[others][..., None] * factor
        own_ns[rows.kind == RowKind.SYNC] += self.sync_ns
        for program, of_rows in enumerate(rows.kernel.T):
            (runs,) = np.nonzero(of_rows >= 0)
            if not len(runs):
                continue
            used, inverse, counts = np.unique(
                of_rows[runs], return_inverse=True, return_counts=True
            )
            times = kernels.times(used)
            spread = times.log_sigma if is_alone else spread_in_step(times, counts)
            launched_ns, replayed_ns = (ns[inverse] for ns in self._kernels_ns(times, spread))
            is_replayed = rows.kind[runs] == RowKind.REPLAYED_KERNEL
            is_replayed = is_replayed[:, None, None] | self.is_captured
            replayed_ns -= rows.launches[runs, program, None, None] * self.gap_ns
            own_ns[runs, program] = np.where(is_replayed, replayed_ns, launched_ns)
        return self.launch_ns[rows.kind][:, None], own_ns

    def _kernels_ns(self, times: KernelTimes, log_sigma: Array) -> tuple[Array, Array]:
        """Return the times of kernels whose logarithms spread by ``log_sigma``: (kernels, D, K).

        First as the host launches them, then in a graph, up to the start of the next kernel.
        """
        deviation, inverse = np.unique(self.kernel_deviation, return_inverse=True)
        factor = np.exp(log_sigma[..., None] * deviation)[..., inverse]
        working = np.where(
            times.is_memory_bound[..., None], self.scale[Bound.MEMORY], self.scale[Bound.COMPUTE]
        )
        scale = np.where(times.is_latency_bound[..., None], self.scale[Bound.LATENCY], working)
        replayed_ns = (times.time_ns - times.floor_ns)[..., None] * factor
        replayed_ns += times.replay_ns[..., None] * self.replay_factor
        return times.time_ns[..., None] * factor * scale, replayed_ns * scale


def rates_of(table: CostTable, scenarios: Sequence[Scenario]) -> Rates:
    """Return what scenarios make of the costs of a table."""
    deviation = np.array([scenario.deviation for scenario in scenarios])
    kernel_deviation = np.array([scenario.kernels_deviate_by for scenario in scenarios])
    scale = {bound: np.array([scenario.scale(bound) for scenario in scenarios]) for bound in Bound}
    is_captured = np.array([scenario.is_captured for scenario in scenarios])
    # A captured step costs the host one launch, whatever its size.
    is_issued = scale[Bound.LAUNCH] * ~is_captured
    host_factor = np.exp(deviation * table.host.log_sigma)
    copy_factor = np.exp(deviation * _COPY_LOG_SIGMA)
    costs = [table.kernels.costs.launch_costs(device) for device in table.kernels.devices]
    sigma = np.array([cost.log_sigma for cost in costs])
    factor = np.exp(deviation * sigma[:, None])
    times = [(c.launch_ns, c.graph_launch_ns, c.sync_ns, c.latency_ns, c.gap_ns) for c in costs]
    launch_ns, graph_launch_ns, sync_ns, latency_ns, gap_ns = (
        np.array(values)[:, None] * factor for values in zip(*times, strict=True)
    )
    host, own = np.zeros((2, len(RowKind), len(scenarios)))
    host[[RowKind.ISSUE, RowKind.COMPILED_ISSUE]] = host_factor * is_issued
    data_factor = host_factor * scale[Bound.HOST_DATA]
    host[[RowKind.HOST_DATA, RowKind.LOADER]] = own[RowKind.LOADER] = data_factor
    host[RowKind.HOST_OPTIMIZER] = host_factor * scale[Bound.HOST_OPTIMIZER]
    host[[RowKind.QUEUED_COPY, RowKind.BLOCKING_COPY]] = host_factor * scale[Bound.TRANSFER]
    host[RowKind.SYNC] = host_factor * scale[Bound.SYNC]
    own[IS_COPY] = copy_factor * scale[Bound.TRANSFER]
    own[RowKind.SYNC] = copy_factor * scale[Bound.SYNC]
    launch = np.zeros((len(RowKind), *launch_ns.shape))
    launch[RowKind.KERNEL] = launch_ns * is_issued
    launch[RowKind.QUEUED_COPY] = launch_ns * scale[Bound.TRANSFER]
    launch[RowKind.GRAPH_LAUNCH] = graph_launch_ns * is_issued
    return Rates(
        scale=scale,
        kernel_deviation=kernel_deviation,
        host=host,
        own=own,
        launch_ns=launch,
        sync_ns=sync_ns * scale[Bound.SYNC],
        latency_ns=latency_ns,
        gap_ns=gap_ns,
        is_captured=is_captured,
        replay_factor=np.exp(kernel_deviation * np.hypot(sigma[:, None], REPLAYED_LOG_SIGMA)),
        lead_ns=graph_launch_ns * is_captured + table.host.step_ns * host_factor * is_issued,
    )


def spread_in_step(times: KernelTimes, counts: Indices) -> Array:
    """Return the spread of each kernel, as the sum over a step sees it: (kernels, devices).

    One part of an error is shared by all kernels of a step: a device that reaches less of its
    datasheet than its reference devices, a library of another year. The other part belongs to a
    kernel's sizes, for which the library has a better or a worse algorithm; such errors partly
    cancel in a step of many different kernels. If every kernel is off by this many standard
    deviations in the same direction, their sum is off as it would be with the parts that are
    independent drawn one by one. Kernels of equal sizes err alike, so only different ones are
    independent of each other.

    Args:
        times: Of each different kernel.
        counts: How often each runs in the step.

    Returns:
        Standard deviations, from ``shared_log_sigma`` to ``log_sigma``.
    """
    own_variance = np.maximum(times.log_sigma**2 - times.shared_log_sigma**2, 0.0)
    deviations = times.time_ns * np.sqrt(own_variance) * counts[:, None]
    together = deviations.sum(axis=0) ** 2
    apart = (deviations**2).sum(axis=0)
    # Where nothing is independent the remaining part does not matter.
    remaining = np.divide(apart, together, out=np.ones_like(together), where=together > 0)
    return np.sqrt(times.shared_log_sigma**2 + own_variance * remaining)
