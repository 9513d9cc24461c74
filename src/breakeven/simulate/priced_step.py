"""A cost table, priced under scenarios: the numbers that timelines run through.

Arrays have one axis each for rows R, programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from breakeven.cost import KernelTimes
from breakeven.simulate.cost_table import (
    Array,
    CostTable,
    Indices,
    KernelTable,
    Mask,
    RowKind,
    Rows,
)
from breakeven.simulate.program import Bound, Scenario

Number = TypeVar("Number", float, Array)

# What a point does, besides what the host does before it.
HOST, KERNEL, LAUNCHES, COPY, SYNC, LOADER, REPLAYED = range(7)
LAUNCHED = frozenset({KERNEL, LAUNCHES})
RUN_IN_ORDER = frozenset({KERNEL, REPLAYED})
ON_DEVICE = LAUNCHED | {COPY, REPLAYED}
_POINT_KINDS = np.array(
    [HOST, HOST, HOST, HOST, KERNEL, KERNEL, COPY, SYNC, LOADER, REPLAYED, REPLAYED, HOST],
    dtype=np.intp,
)
"""What a row does, by its kind, where nothing is free of charge."""


def _is_any(number: int, *kinds: int) -> Mask:
    mask = np.zeros(number, dtype=np.bool_)
    mask[list(kinds)] = True
    return mask


_IS_ON_DEVICE = _is_any(7, *ON_DEVICE)
_IS_QUEUED = _is_any(len(RowKind), RowKind.KERNEL, RowKind.QUEUED_COPY)
_IS_COPY = _is_any(len(RowKind), RowKind.QUEUED_COPY, RowKind.BLOCKING_COPY, RowKind.REPLAYED_COPY)

# Pageable copies pass through a staging buffer at the pace of the host's memcpy, which varies
# between machines by about a third in either direction (90 %).
_COPY_LOG_SIGMA = 0.18


@dataclass(frozen=True, slots=True)
class Launches(Generic[Number]):
    """A launch that is more, or other, than one kernel at the rates of the step.

    Args:
        count: Entries in the launch queue, the most of any program.
        more_ns: The host's time for the launches after the first.
        tail_ns: From the last launch to the end, on an otherwise idle device.
        last_ns: Duration of the last kernel.
        latency_ns: From the first launch to its start on an idle device; minus infinity where
            nothing is launched, or it is free of charge.
        gap_ns: From the end of the kernel before to the start.
    """

    count: int
    more_ns: Number
    tail_ns: Number
    last_ns: Number
    latency_ns: Number
    gap_ns: Number


Point = tuple[int, Number, Number, Launches[Number] | None]
"""Kind, the host's time before it, its own time, and more where there is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep(Generic[Number]):
    """A priced step, in plain numbers or in arrays (P, D, K), (D, K) or (K).

    Args:
        points: In the order in which the host reaches them.
        rows: Row of the cost table of each point; of the last one, where several were merged.
        lead_ns: The host's time before the first point.
        latency_ns: From a launch to its start on an idle device.
        gap_ns: From the end of a kernel to the start of the next.
        sync_wait_ns: 0 where a sync waits for the device, minus infinity where it is free.
        copy_wait_ns: The same of copies.
        host_ns: The host's own time per step.
        compiled_ns: The part of it in which compiled code issues kernels, which slows neither down.
        device_ns: Kernels and copies per step.
        num_launches: Entries in the launch queue, the most of any program.
        overlap_loss_fraction: As in the costs.
    """

    points: list[Point[Number]]
    rows: Indices
    lead_ns: Number
    latency_ns: Number
    gap_ns: Number
    sync_wait_ns: Number
    copy_wait_ns: Number
    host_ns: Number
    compiled_ns: Number
    device_ns: Number
    num_launches: int
    overlap_loss_fraction: float

    def step_ns(self, period_ns: Number) -> Number:
        """Return the time of a step, given its period if nothing slowed the other down."""
        both_ns = self.host_ns - self.compiled_ns + self.device_ns - period_ns
        return period_ns + self.overlap_loss_fraction * (both_ns * (both_ns > 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Rows that deviate in a way of their own.

    Args:
        rows: Which.
        scenario: How; kernels by all of their own spread, which within a step averages out.
    """

    rows: Mask
    scenario: Scenario


def price(
    table: CostTable,
    scenario: Scenario,
    *,
    perturbation: Perturbation | None = None,
    is_merged: bool = True,
) -> PricedStep[float]:
    """Return the only program of a table on its only device, priced in plain numbers.

    Args:
        table: The step.
        scenario: Circumstances.
        perturbation: Rows for which others hold.
        is_merged: What only keeps the host busy is added to the point after it.
    """
    return _priced(table, (scenario,), _plain, perturbation, is_merged=is_merged)


def price_all(table: CostTable, scenarios: Sequence[Scenario]) -> PricedStep[Array]:
    """Return all programs of a table on all of its devices, priced in arrays."""
    return _priced(table, scenarios, list, None, is_merged=True)


def _plain(column: Array) -> list[float]:
    return column.reshape(len(column)).tolist()


def _priced(
    table: CostTable,
    scenarios: Sequence[Scenario],
    split: Callable[[Array], list[Number]],
    perturbation: Perturbation | None,
    *,
    is_merged: bool,
) -> PricedStep[Number]:
    """Return the priced step; ``split`` takes arrays (R, P, D, K) apart into what a point has."""
    rates = _rates_of(table, scenarios)
    all_kinds = _point_kinds(table.rows, rates)
    points = _kept(table.rows, all_kinds) if is_merged else np.arange(len(all_kinds))
    rows, kinds = table.rows.take(points), all_kinds[points]
    work_ns = _work_ns(table.rows, rates)
    launch_ns, own_ns = _costs_by_row(rows, rates, table.kernels, is_alone=False)
    if perturbation is not None:
        others = _rates_of(table, (perturbation.scenario,))
        is_other = perturbation.rows[:, None, None, None]
        work_ns = np.where(is_other, _work_ns(table.rows, others), work_ns)
        theirs = _costs_by_row(rows, others, table.kernels, is_alone=True)
        launch_ns, own_ns = (
            np.where(is_other[points], their, our)
            for their, our in zip(theirs, (launch_ns, own_ns), strict=True)
        )
    launches = rows.launches[:, :, None, None]
    first_launch_ns = np.minimum(launches, 1) * launch_ns
    before_ns = _merged(work_ns, points) + first_launch_ns
    is_compiled = _is_compiled(table.rows)

    (special,) = np.nonzero(kinds == LAUNCHES)
    special_kinds, counts = rows.kind[special], launches[special]
    is_queued = _IS_QUEUED[special_kinds]
    more_ns = np.maximum(counts - 1, 0) * is_queued[:, None, None, None] * launch_ns[special]
    last_ns = own_ns[special] / np.maximum(counts, 1)
    is_free = _IS_COPY[special_kinds, None, None, None] & (rates.scale[Bound.TRANSFER] == 0)
    is_void = (counts == 0) | is_free
    latency_ns = np.where(is_void, -np.inf, rates.latency_ns)
    more: dict[int, Launches[Number]] = dict(
        zip(
            special.tolist(),
            map(
                Launches,
                (is_queued * rows.launches[special].max(axis=1, initial=0)).tolist(),
                split(more_ns),
                split(latency_ns + last_ns),
                split(last_ns),
                split(latency_ns),
                split(np.where(is_void, 0.0, rates.gap_ns)),
            ),
            strict=True,
        )
    )
    # All launches of a kernel that a graph replays are there when it starts.
    (many,) = np.nonzero((rows.launches > 1).any(axis=1))
    own_ns[many] += np.maximum(launches[many] - 1, 0) * rates.gap_ns

    def whole(values: Array) -> Number:
        (number,) = split(values[None])
        return number

    lead_ns, own_sync_ns = rates.lead_ns, own_ns[kinds == SYNC].sum(axis=0)
    return PricedStep(
        points=[
            (kind, before, own, more.get(position))
            for position, (kind, before, own) in enumerate(
                zip(kinds.tolist(), split(before_ns), split(own_ns), strict=True)
            )
        ],
        rows=points,
        lead_ns=whole(lead_ns),
        latency_ns=whole(rates.latency_ns),
        gap_ns=whole(rates.gap_ns),
        sync_wait_ns=whole(np.where(rates.scale[Bound.SYNC] == 0, -np.inf, 0.0)),
        copy_wait_ns=whole(np.where(rates.scale[Bound.TRANSFER] == 0, -np.inf, 0.0)),
        host_ns=whole(lead_ns + before_ns.sum(axis=0) + more_ns.sum(axis=0) + own_sync_ns),
        compiled_ns=whole(
            work_ns[is_compiled].sum(axis=0) + first_launch_ns[is_compiled[points]].sum(axis=0)
        ),
        device_ns=whole(own_ns[_IS_ON_DEVICE[kinds]].sum(axis=0)),
        num_launches=int((_IS_QUEUED[rows.kind] * rows.launches.max(axis=1, initial=0)).sum()),
        overlap_loss_fraction=table.kernels.costs.overlap_loss_fraction,
    )


def _point_kinds(rows: Rows, rates: _Rates) -> Indices:
    """Return what each row does; what is free of charge waits for nothing."""
    of_kind = _POINT_KINDS.copy()
    copies, syncs = rates.scale[Bound.TRANSFER], rates.scale[Bound.SYNC]
    if not copies.all():
        of_kind[RowKind.QUEUED_COPY] = of_kind[RowKind.REPLAYED_COPY] = LAUNCHES
    if not copies.any():
        of_kind[RowKind.BLOCKING_COPY] = of_kind[RowKind.REPLAYED_COPY] = HOST
    if not syncs.any():
        of_kind[RowKind.SYNC] = HOST
    kinds = of_kind[rows.kind]
    is_single, is_present = (rows.launches == 1).all(axis=1), (rows.launches > 0).all(axis=1)
    is_special = (kinds == KERNEL) & ~is_single | (kinds == REPLAYED) & ~is_present
    return np.where(is_special, LAUNCHES, kinds)


def _is_compiled(rows: Rows) -> Mask:
    """Return which rows are of what compiled code issues: its own time, and its kernels."""
    return np.isin(rows.event, rows.event[rows.kind == RowKind.COMPILED_ISSUE])


def _kept(rows: Rows, kinds: Indices) -> Indices:
    """Return the points that remain when the host's own work is merged into the next."""
    is_kept = (kinds != HOST) | (rows.kind == RowKind.GRAPH_LAUNCH)
    is_kept[-1:] = True
    return np.flatnonzero(is_kept)


def _merged(values: Array, points: Indices) -> Array:
    """Return the sums of ``values`` up to and with each of ``points``, from the one before on."""
    if len(points) == len(values):
        return values
    return np.add.reduceat(values, np.concatenate(([0], points[:-1] + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
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
    lead_ns: Array

    def kernels_ns(self, times: KernelTimes, log_sigma: Array) -> Array:
        """Return the times of kernels whose logarithms spread by ``log_sigma``: (kernels, D, K)."""
        deviation, inverse = np.unique(self.kernel_deviation, return_inverse=True)
        factor = np.exp(log_sigma[..., None] * deviation)[..., inverse]
        working = np.where(
            times.is_memory_bound[..., None], self.scale[Bound.MEMORY], self.scale[Bound.COMPUTE]
        )
        scale = np.where(times.is_latency_bound[..., None], self.scale[Bound.LATENCY], working)
        return times.time_ns[..., None] * factor * scale


def _rates_of(table: CostTable, scenarios: Sequence[Scenario]) -> _Rates:
    deviation = np.array([scenario.deviation for scenario in scenarios])
    scale = {bound: np.array([scenario.scale(bound) for scenario in scenarios]) for bound in Bound}
    is_captured = np.array([scenario.is_captured for scenario in scenarios])
    # A captured step costs the host one launch, whatever its size.
    is_issued = scale[Bound.LAUNCH] * ~is_captured
    host_factor = np.exp(deviation * table.host.log_sigma)
    copy_factor = np.exp(deviation * _COPY_LOG_SIGMA)
    launches = [table.kernels.costs.launch_costs(device) for device in table.kernels.devices]
    sigma = np.array([cost.log_sigma for cost in launches])
    factor = np.exp(deviation * sigma[:, None])
    launch_ns, graph_launch_ns, sync_ns, latency_ns, gap_ns = (
        np.array(values)[:, None] * factor
        for values in zip(
            *(
                (c.launch_ns, c.graph_launch_ns, c.sync_ns, c.latency_ns, c.gap_ns)
                for c in launches
            ),
            strict=True,
        )
    )
    host, own = np.zeros((2, len(RowKind), len(scenarios)))
    host[[RowKind.ISSUE, RowKind.COMPILED_ISSUE]] = host_factor * is_issued
    host[RowKind.HOST_DATA] = own[RowKind.LOADER] = host_factor * scale[Bound.HOST_DATA]
    host[RowKind.HOST_OPTIMIZER] = host_factor * scale[Bound.HOST_OPTIMIZER]
    host[[RowKind.QUEUED_COPY, RowKind.BLOCKING_COPY]] = host_factor * scale[Bound.TRANSFER]
    own[_IS_COPY] = copy_factor * scale[Bound.TRANSFER]
    own[RowKind.SYNC] = copy_factor * scale[Bound.SYNC]
    launch = np.zeros((len(RowKind), *launch_ns.shape))
    launch[RowKind.KERNEL] = launch_ns * is_issued
    launch[RowKind.QUEUED_COPY] = launch_ns * scale[Bound.TRANSFER]
    launch[RowKind.GRAPH_LAUNCH] = graph_launch_ns * is_issued
    return _Rates(
        scale=scale,
        kernel_deviation=np.array([scenario.kernels_deviate_by for scenario in scenarios]),
        host=host,
        own=own,
        launch_ns=launch,
        sync_ns=sync_ns * scale[Bound.SYNC],
        latency_ns=latency_ns,
        gap_ns=gap_ns,
        lead_ns=graph_launch_ns * is_captured + table.host.step_ns * host_factor * is_issued,
    )


def _work_ns(rows: Rows, rates: _Rates) -> Array:
    """Return the host's work, launches apart: (R, P, 1, K)."""
    return (rows.host_ns[..., None] * rates.host[rows.kind][:, None])[:, :, None]


def _costs_by_row(
    rows: Rows, rates: _Rates, kernels: KernelTable, *, is_alone: bool
) -> tuple[Array, Array]:
    """Return what one launch takes the host, (R, 1, D, K), and the rows' own time.

    Args:
        rows: All that have a kernel, and others.
        rates: What scenarios make of their costs.
        kernels: The kernels.
        is_alone: Each kernel deviates as it would by itself, not as one of the step.
    """
    own_ns = np.zeros((*rows.device_ns.shape, rates.own.shape[1]))
    (others,) = np.nonzero((rates.own[rows.kind] > 0).any(axis=1))
    factor = rates.own[rows.kind[others]][:, None, None]
    own_ns[others] = rows.device_ns[others][..., None] * factor
    own_ns[rows.kind == RowKind.SYNC] += rates.sync_ns
    for program, of_rows in enumerate(rows.kernel.T):
        (runs,) = np.nonzero(of_rows >= 0)
        if not len(runs):
            continue
        used, inverse, counts = np.unique(of_rows[runs], return_inverse=True, return_counts=True)
        times = kernels.times(used)
        spread = times.log_sigma if is_alone else spread_in_step(times, counts)
        own_ns[runs, program] = rates.kernels_ns(times, spread)[inverse]
    return rates.launch_ns[rows.kind][:, None], own_ns


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
