"""A cost table, priced under scenarios: the numbers that timelines run through.

Arrays have one axis each for rows R, programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from breakeven.simulate.cost_table import IS_COPY, Array, CostTable, Indices, Mask, RowKind, Rows
from breakeven.simulate.program import Bound, Scenario
from breakeven.simulate.scenario_rates import Rates, rates_of

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
_IS_ON_DEVICE = np.array([kind in ON_DEVICE for kind in range(7)])
_IS_QUEUED = np.array([kind in (RowKind.KERNEL, RowKind.QUEUED_COPY) for kind in RowKind])


@dataclass(frozen=True, slots=True)
class Launches:
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
    more_ns: float
    tail_ns: float
    last_ns: float
    latency_ns: float
    gap_ns: float


Point = tuple[int, float, float, Launches | None]
"""Kind, the host's time before it, its own time, and more where there is more."""


@dataclass(frozen=True, kw_only=True)
class PricedStep(Generic[Number]):
    """A priced step, in plain numbers or in arrays (P, D, K), (D, K) or (K).

    Args:
        kinds: What the points do, in the order in which the host reaches them: (R).
        before_ns: The host's time before each: (R, P, D, K), or broadcast to it.
        own_ns: The own time of each: (R, P, D, K).
        special: Positions of those that are `Launches`: (S).
        counts: The first field of these: (S).
        special_ns: Their other fields: (5, S, P, D, K).
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

    kinds: Indices
    before_ns: Array
    own_ns: Array
    special: Indices
    counts: Indices
    special_ns: Array
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

    @cached_property
    def points(self) -> list[Point]:
        """Return the points of a step in plain numbers one by one."""
        launches = map(Launches, self.counts.tolist(), *map(_plain, self.special_ns))
        more = dict(zip(self.special.tolist(), launches, strict=True))
        times = _plain(self.before_ns), _plain(self.own_ns)
        numbered = enumerate(zip(self.kinds.tolist(), *times, strict=True))
        return [(*point, more.get(position)) for position, point in numbered]

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
    return _priced(table, (scenario,), np.ndarray.item, perturbation, is_merged=is_merged)


def price_all(table: CostTable, scenarios: Sequence[Scenario]) -> PricedStep[Array]:
    """Return all programs of a table on all of its devices, priced in arrays."""
    return _priced(table, scenarios, np.asarray, None, is_merged=True)


def _plain(column: Array) -> list[float]:
    return column.reshape(len(column)).tolist()


def _priced(
    table: CostTable,
    scenarios: Sequence[Scenario],
    whole: Callable[[Array], Number],
    perturbation: Perturbation | None,
    *,
    is_merged: bool,
) -> PricedStep[Number]:
    """Return the priced step; ``whole`` makes a number of what is none of its points."""
    rates = rates_of(table, scenarios)
    all_kinds = _point_kinds(table.rows, rates)
    points = _kept(table.rows, all_kinds) if is_merged else np.arange(len(all_kinds))
    rows, kinds = table.rows.take(points), all_kinds[points]
    work_ns = rates.work_ns(table.rows)
    launch_ns, own_ns = rates.row_costs(rows, table.kernels, is_alone=False)
    if perturbation is not None:
        others = rates_of(table, (perturbation.scenario,))
        is_other = perturbation.rows[:, None, None, None]
        work_ns = np.where(is_other, others.work_ns(table.rows), work_ns)
        theirs = others.row_costs(rows, table.kernels, is_alone=True)
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
    is_free = IS_COPY[special_kinds, None, None, None] & (rates.scale[Bound.TRANSFER] == 0)
    is_void = (counts == 0) | is_free
    latency_ns = np.where(is_void, -np.inf, rates.latency_ns)
    # All launches of a kernel that a graph replays are there when it starts.
    (many,) = np.nonzero((rows.launches > 1).any(axis=1))
    own_ns[many] += np.maximum(launches[many] - 1, 0) * rates.gap_ns

    lead_ns, own_sync_ns = rates.lead_ns, own_ns[kinds == SYNC].sum(axis=0)
    return PricedStep(
        kinds=kinds,
        before_ns=before_ns,
        own_ns=own_ns,
        special=special,
        counts=is_queued * rows.launches[special].max(axis=1, initial=0),
        special_ns=np.stack(
            np.broadcast_arrays(
                more_ns,
                latency_ns + last_ns,
                last_ns,
                latency_ns,
                np.where(is_void, 0.0, rates.gap_ns),
            )
        ),
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


def _point_kinds(rows: Rows, rates: Rates) -> Indices:
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
