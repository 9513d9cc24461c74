"""A cost table, priced under scenarios: the input of the timelines.

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
from breakeven.simulate.program import TYPICAL, Bound, Scenario

# Pageable copies pass through a staging buffer at the pace of the host's memcpy, which varies
# between machines by about a third in either direction (90 %).
_COPY_LOG_SIGMA = 0.18

# Kinds of rows: those that the stream runs in order, those of them that occupy the launch queue,
# and those that also occupy the device.
_QUEUED = (RowKind.KERNEL, RowKind.QUEUED_COPY)
_ON_STREAM = (*_QUEUED, RowKind.REPLAYED_KERNEL, RowKind.REPLAYED_COPY)
IS_QUEUED = np.array([kind in _QUEUED for kind in RowKind])
IS_ON_STREAM = np.array([kind in _ON_STREAM for kind in RowKind])
IS_ON_DEVICE = IS_ON_STREAM | (np.array(RowKind) == RowKind.BLOCKING_COPY)
# The other rows are host work, which is added to the next point.
_IS_POINT = IS_ON_DEVICE | np.isin(
    np.array(RowKind), (RowKind.SYNC, RowKind.LOADER, RowKind.GRAPH_LAUNCH)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """A priced step: a point for each row, or for each row that does not only occupy the host.

    Args:
        kinds: The `RowKind` of each point, in the host's order: (R).
        rows: Row of the cost table of each point; the last one of several merged rows: (R).
        counts: Entries of each in the launch queue, the most of any program: (R).
        before_ns: The host's time before each, its first launch included: (R, P, D, K).
        own_ns: The own time of each, including gaps between several launches: (R, P, D, K).
        many: Positions of points with several launches: (M).
        more_ns: The host's time for their launches after the first: (M, P, D, K).
        last_ns: Time of their last launch: (M, P, D, K).
        is_free: Points without a launch, or free of charge: neither timeline waits for the other
            there: (R, P, 1, K).
        lead_ns: The host's time before the first point: (D, K).
        latency_ns: From a launch to its start on an idle device: (D, K).
        gap_ns: From the end of a kernel to the start of the next: (D, K).
        host_ns: The host's own time per step: (P, D, K).
        compiled_ns: The part of it in which compiled code issues kernels, which slows neither
            timeline.
        device_ns: Kernels and copies per step: (P, D, K).
        overlap_loss_fraction: As in the costs.
    """

    kinds: Indices
    rows: Indices
    counts: Indices
    before_ns: Array
    own_ns: Array
    many: Indices
    more_ns: Array
    last_ns: Array
    is_free: Mask
    lead_ns: Array
    latency_ns: Array
    gap_ns: Array
    host_ns: Array
    compiled_ns: Array
    device_ns: Array
    overlap_loss_fraction: float

    def step_ns(self, period_ns: Array) -> Array:
        """Return the time of a step from its period without mutual slowdown."""
        both_ns = self.host_ns - self.compiled_ns + self.device_ns - period_ns
        return period_ns + self.overlap_loss_fraction * np.maximum(both_ns, 0.0)


def price(
    table: CostTable,
    scenarios: Sequence[Scenario] = (TYPICAL,),
    *,
    deviating: tuple[Mask, Sequence[Scenario]] | None = None,
    is_merged: bool = True,
) -> PricedStep:
    """Return the programs of a table, priced on its devices under scenarios.

    Args:
        table: The step.
        scenarios: Circumstances.
        deviating: Rows with their own scenarios, one for each scenario; their kernels deviate by
            all of their spread, without the averaging of a step.
        is_merged: Add work that only occupies the host to the point after it.
    """
    points = _points(table.rows.kind, is_merged=is_merged)
    rows, rates = table.rows.take(points), _Rates(table, scenarios)
    work_ns = rates.work_ns(table.rows)
    launch_ns, own_ns = rates.launch_ns[rows.kind][:, None], rates.own_ns(rows, table.kernels)
    if deviating is not None:
        is_other, others = deviating[0][:, None, None, None], _Rates(table, deviating[1])
        work_ns = np.where(is_other, others.work_ns(table.rows), work_ns)
        is_other = is_other[points]
        launch_ns = np.where(is_other, others.launch_ns[rows.kind][:, None], launch_ns)
        alone_ns = others.own_ns(rows, table.kernels, is_alone=True)
        own_ns = np.where(is_other, alone_ns, own_ns)

    launches = rows.launches[:, :, None, None]
    first_launch_ns = np.minimum(launches, 1) * launch_ns
    before_ns = _merged(work_ns, points) + first_launch_ns
    (many,) = np.nonzero((rows.launches > 1).any(axis=1))
    further = np.maximum(launches[many] - 1, 0)
    more_ns = further * IS_QUEUED[rows.kind[many], None, None, None] * launch_ns[many]
    last_ns = own_ns[many] / np.maximum(launches[many], 1)
    # A graph launches all instances of a kernel before it starts.
    own_ns[many] += further * rates.gap_ns

    kinds = rows.kind[:, None, None, None]
    is_free = IS_ON_STREAM[kinds] & (launches == 0)
    is_free = is_free | IS_COPY[kinds] & (rates.scale[Bound.TRANSFER] == 0)
    is_free = is_free | (kinds == RowKind.SYNC) & (rates.scale[Bound.SYNC] == 0)
    # Rows of compiled code's issues: its own time, and its kernels.
    is_compiled = np.isin(
        table.rows.event, table.rows.event[table.rows.kind == RowKind.COMPILED_ISSUE]
    )
    syncs_ns = own_ns[rows.kind == RowKind.SYNC].sum(axis=0)
    return PricedStep(
        kinds=rows.kind,
        rows=points,
        counts=IS_QUEUED[rows.kind] * rows.launches.max(axis=1, initial=0),
        before_ns=before_ns,
        own_ns=own_ns,
        many=many,
        more_ns=more_ns,
        last_ns=last_ns,
        is_free=is_free,
        lead_ns=rates.lead_ns,
        latency_ns=rates.latency_ns,
        gap_ns=rates.gap_ns,
        host_ns=rates.lead_ns + before_ns.sum(axis=0) + more_ns.sum(axis=0) + syncs_ns,
        compiled_ns=work_ns[is_compiled].sum(axis=0)
        + first_launch_ns[is_compiled[points]].sum(axis=0),
        device_ns=own_ns[IS_ON_DEVICE[rows.kind]].sum(axis=0),
        overlap_loss_fraction=table.kernels.costs.overlap_loss_fraction,
    )


def _points(kinds: Indices, *, is_merged: bool) -> Indices:
    """Return the rows that are points."""
    is_kept = _IS_POINT[kinds] | (not is_merged)
    is_kept[-1:] = True
    return np.flatnonzero(is_kept)


def _merged(values: Array, points: Indices) -> Array:
    """Return the sum of ``values`` after the previous point up to and including each point."""
    if len(points) == len(values):
        return values
    return np.add.reduceat(values, np.concatenate(([0], points[:-1] + 1)))


class _Rates:
    """The factors of scenarios on costs, and the times that do not depend on the event.

    Attributes:
        scale: 0 for a resource that is free of charge, 1 otherwise: (K).
        launch_ns: The host's time of one launch, by kind of row: (kinds, D, K).
        latency_ns: From a launch to its start on an idle device: (D, K).
        gap_ns: From the end of a kernel to the start of the next: (D, K).
        lead_ns: The host's time before the first event: the launch of a captured step, or its own
            time outside of operators: (D, K).
    """

    def __init__(self, table: CostTable, scenarios: Sequence[Scenario]) -> None:
        deviation = np.array([scenario.deviation for scenario in scenarios])
        self._kernel_deviation = np.array([scenario.kernels_deviate_by for scenario in scenarios])
        self.scale = scale = {
            bound: np.array([0.0 if bound in each.without else 1.0 for each in scenarios])
            for bound in Bound
        }
        self._is_captured = np.array([scenario.is_captured for scenario in scenarios])
        # A captured step of any size costs the host one launch.
        is_issued = scale[Bound.LAUNCH] * ~self._is_captured
        host_factor = np.exp(deviation * table.host.log_sigma)
        copy_factor = np.exp(deviation * _COPY_LOG_SIGMA)
        costs = [table.kernels.costs.launch_costs(device) for device in table.kernels.devices]
        sigma = np.array([cost.log_sigma for cost in costs])[:, None]
        times = [(c.launch_ns, c.graph_launch_ns, c.sync_ns, c.latency_ns, c.gap_ns) for c in costs]
        launch_ns, graph_launch_ns, sync_ns, self.latency_ns, self.gap_ns = (
            np.array(values)[:, None] * np.exp(deviation * sigma)
            for values in zip(*times, strict=True)
        )
        # Factors of the host's own time, and of a row's own time, by kind of row.
        self._host, self._own = host, own = np.zeros((2, len(RowKind), len(scenarios)))
        host[[RowKind.ISSUE, RowKind.COMPILED_ISSUE]] = host_factor * is_issued
        data_factor = host_factor * scale[Bound.HOST_DATA]
        host[[RowKind.HOST_DATA, RowKind.LOADER]] = own[RowKind.LOADER] = data_factor
        host[RowKind.HOST_OPTIMIZER] = host_factor * scale[Bound.HOST_OPTIMIZER]
        host[[RowKind.QUEUED_COPY, RowKind.BLOCKING_COPY]] = host_factor * scale[Bound.TRANSFER]
        host[RowKind.SYNC] = host_factor * scale[Bound.SYNC]
        own[IS_COPY] = copy_factor * scale[Bound.TRANSFER]
        own[RowKind.SYNC] = copy_factor * scale[Bound.SYNC]
        self._sync_ns = sync_ns * scale[Bound.SYNC]
        self.launch_ns = np.zeros((len(RowKind), *launch_ns.shape))
        self.launch_ns[RowKind.KERNEL] = launch_ns * is_issued
        self.launch_ns[RowKind.QUEUED_COPY] = launch_ns * scale[Bound.TRANSFER]
        self.launch_ns[RowKind.GRAPH_LAUNCH] = graph_launch_ns * is_issued
        self.lead_ns = graph_launch_ns * self._is_captured
        self.lead_ns += table.host.step_ns * host_factor * is_issued
        # Factor of the launch times in a graph.
        self._replay_factor = np.exp(self._kernel_deviation * np.hypot(sigma, REPLAYED_LOG_SIGMA))

    def work_ns(self, rows: Rows) -> Array:
        """Return the host's work, without launches: (R, P, 1, K)."""
        return (rows.host_ns[..., None] * self._host[rows.kind][:, None])[:, :, None]

    def own_ns(self, rows: Rows, kernels: KernelTable, *, is_alone: bool = False) -> Array:
        """Return the rows' own times: (R, P, D, K).

        Args:
            rows: All rows with a kernel, and others.
            kernels: The kernels.
            is_alone: Each kernel deviates as it would alone, not as one of the step.
        """
        own_ns = np.zeros((*rows.device_ns.shape, self._own.shape[1]))
        (others,) = np.nonzero((self._own[rows.kind] > 0).any(axis=1))
        factor = self._own[rows.kind[others]][:, None, None]
        own_ns[others] = rows.device_ns[others][..., None] * factor
        own_ns[rows.kind == RowKind.SYNC] += self._sync_ns
        for program, of_rows in enumerate(rows.kernel.T):
            (runs,) = np.nonzero(of_rows >= 0)
            if not len(runs):
                continue
            used, inverse, counts = np.unique(
                of_rows[runs], return_inverse=True, return_counts=True
            )
            times = kernels.times(used)
            spread = times.log_sigma if is_alone else spread_in_step(times, counts)
            # Few of the scenarios differ in their kernels' deviation.
            deviation, same = np.unique(self._kernel_deviation, return_inverse=True)
            factor = np.exp(spread[..., None] * deviation)[..., same]
            working = np.where(
                times.is_memory_bound[..., None],
                self.scale[Bound.MEMORY],
                self.scale[Bound.COMPUTE],
            )
            scale = np.where(times.is_latency_bound[..., None], self.scale[Bound.LATENCY], working)
            own_ns[runs, program] = (times.time_ns[..., None] * factor * scale)[inverse]
            is_replayed = rows.kind[runs] == RowKind.REPLAYED_KERNEL
            if is_replayed.any() or self._is_captured.any():
                # Time in a graph, up to the start of the next kernel.
                replayed_ns = (times.time_ns - times.floor_ns)[..., None] * factor
                replayed_ns += times.replay_ns[..., None] * self._replay_factor
                replayed_ns = (replayed_ns * scale)[inverse]
                replayed_ns -= rows.launches[runs, program, None, None] * self.gap_ns
                is_replayed = is_replayed[:, None, None] | self._is_captured
                own_ns[runs, program] = np.where(is_replayed, replayed_ns, own_ns[runs, program])
        return own_ns


def spread_in_step(times: KernelTimes, counts: Indices) -> Array:
    """Return the spread of each kernel that gives the sum over a step the right spread.

    All kernels of a step share one part of an error: a device that reaches less of its datasheet
    than its reference devices, a library of another year. The other part depends on a kernel's
    sizes, for which the library has a better or a worse algorithm; such errors partly cancel in a
    step of many different kernels. If all kernels deviate by the returned spread in the same
    direction, their sum has the spread that it would have with independent errors of these parts.
    Kernels of equal sizes have equal errors, so only different ones are independent.

    Args:
        times: Times of each different kernel.
        counts: Runs of each in the step.

    Returns:
        Standard deviations from ``shared_log_sigma`` to ``log_sigma``: (kernels, devices).
    """
    own_variance = np.maximum(times.log_sigma**2 - times.shared_log_sigma**2, 0.0)
    deviations = times.time_ns * np.sqrt(own_variance) * counts[:, None]
    together = deviations.sum(axis=0) ** 2
    apart = (deviations**2).sum(axis=0)
    # If no error is independent, the remaining part does not matter.
    remaining = np.divide(apart, together, out=np.ones_like(together), where=together > 0)
    return np.sqrt(times.shared_log_sigma**2 + own_variance * remaining)
