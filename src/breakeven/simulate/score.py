"""A tape, priced under one scenario: the numbers that a replay runs through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.simulate.bound import Bound
from breakeven.simulate.plan import Array
from breakeven.simulate.rates import Rates, rates_of
from breakeven.simulate.scenario import Scenario
from breakeven.simulate.tape import Indices, Mask, RowKind, Tape

# What a point does, besides what the host does before it.
HOST, KERNEL, LAUNCHES, COPY, SYNC, LOADER, REPLAYED = range(7)
LAUNCHED = frozenset({KERNEL, LAUNCHES})
RUN_IN_ORDER = frozenset({KERNEL, REPLAYED})
ON_DEVICE = LAUNCHED | {COPY, REPLAYED}


@dataclass(frozen=True, slots=True)
class Launches:
    """A launch that is more than one kernel at the rates of the score.

    Args:
        count: Entries in the launch queue.
        more_ns: The host's time for the launches after the first.
        tail_ns: From the last launch to the end, on an otherwise idle device.
        last_ns: Duration of the last kernel.
        latency_ns: From the first launch to its start on an idle device.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A priced step.

    Args:
        points: In the order in which the host reaches them.
        rows: Row of the tape of each point; of the last one, where several were merged.
        lead_ns: The host's time before the first point.
        latency_ns: From a launch to its start on an idle device.
        gap_ns: From the end of a kernel to the start of the next.
        host_ns: The host's own time per step.
        device_ns: Kernels and copies per step.
        num_launches: Entries in the launch queue.
        overlap_loss_fraction: As in the costs.
    """

    points: list[Point]
    rows: Indices
    lead_ns: float
    latency_ns: float
    gap_ns: float
    host_ns: float
    device_ns: float
    num_launches: int
    overlap_loss_fraction: float

    def step_ns(self, period_ns: float) -> float:
        """Return the time of a step, given its period if nothing slowed the other down."""
        both_ns = max(self.host_ns + self.device_ns - period_ns, 0.0)
        return period_ns + self.overlap_loss_fraction * both_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Rows that deviate in a way of their own.

    Args:
        rows: Which.
        scenario: How; kernels by all of their own spread, which within a step averages out.
    """

    rows: Mask
    scenario: Scenario


def price(
    tape: Tape, scenario: Scenario, *, touched: Touched | None = None, is_merged: bool = True
) -> Score:
    """Return the priced step.

    Args:
        tape: The step.
        scenario: Circumstances.
        touched: Rows for which others hold.
        is_merged: What only keeps the host busy is added to the point after it.
    """
    rates = _rates(tape, scenario)
    kernels_ns = _kernels_ns(tape, rates, is_alone=False)
    work_ns, launch_ns, own_ns = _priced(tape, rates, kernels_ns)
    if touched is not None:
        others = _rates(tape, touched.scenario)
        theirs = _priced(tape, others, _kernels_ns(tape, others, is_alone=True))
        work_ns, launch_ns, own_ns = (
            np.where(touched.rows, their, our)
            for their, our in zip(theirs, (work_ns, launch_ns, own_ns), strict=True)
        )
    kinds = _point_kinds(tape, rates)
    gap_ns, latency_ns = float(rates.gap_ns[0, 0]), float(rates.latency_ns[0, 0])
    # All launches of a kernel that a graph replays are there when it starts.
    own_ns += np.where(kinds == REPLAYED, np.maximum(tape.rows.launches - 1, 0) * gap_ns, 0.0)
    more: dict[int, Launches] = {}
    for row in np.flatnonzero(kinds == LAUNCHES).tolist():
        is_free = tape.rows.kind[row] == RowKind.QUEUED_COPY
        count = int(tape.rows.launches[row])
        last_ns = float(own_ns[row]) / count
        more[row] = Launches(
            count=count,
            more_ns=(count - 1) * float(launch_ns[row]),
            tail_ns=-np.inf if is_free else latency_ns + last_ns,
            last_ns=last_ns,
            latency_ns=-np.inf if is_free else latency_ns,
            gap_ns=0.0 if is_free else gap_ns,
        )
        own_ns[row] += (count - 1) * gap_ns
    is_launched = (kinds == KERNEL) | (kinds == LAUNCHES)
    before_ns = work_ns + launch_ns
    lead_ns = float(rates.lead_ns[0, 0])
    more_ns = sum(launches.more_ns for launches in more.values())
    rows = _kept(kinds) if is_merged else np.arange(len(kinds))
    return Score(
        points=list(
            zip(
                kinds[rows].tolist(),
                _merged(before_ns, rows).tolist(),
                own_ns[rows].tolist(),
                map(more.get, rows.tolist()),
                strict=True,
            )
        ),
        rows=rows,
        lead_ns=lead_ns,
        latency_ns=latency_ns,
        gap_ns=gap_ns,
        host_ns=lead_ns + float(before_ns.sum()) + more_ns + float(own_ns[kinds == SYNC].sum()),
        device_ns=float(own_ns[is_launched | (kinds == COPY) | (kinds == REPLAYED)].sum()),
        num_launches=int(tape.rows.launches[is_launched].sum()),
        overlap_loss_fraction=tape.costs.overlap_loss_fraction,
    )


def _rates(tape: Tape, scenario: Scenario) -> Rates:
    return rates_of(tape.costs, (tape.device,), tape.host, (scenario,))


def _kernels_ns(tape: Tape, rates: Rates, *, is_alone: bool) -> Array:
    """Return the time of each row's kernel.

    Args:
        tape: The step.
        rates: Of one device and scenario.
        is_alone: Each kernel deviates as it would by itself, not as one of the step.
    """
    time_ns = np.zeros(len(tape.rows))
    has_kernel = tape.rows.kernel >= 0
    used, inverse, counts = np.unique(
        tape.rows.kernel[has_kernel], return_inverse=True, return_counts=True
    )
    if len(used):
        times = tape.table.times(used)
        if is_alone:
            own_ns = rates.deviating_ns(times, times.log_sigma)
        else:
            own_ns = rates.kernel_ns(times, counts.tolist())
        time_ns[has_kernel] = own_ns[:, 0, 0][inverse]
    return time_ns


def _priced(tape: Tape, rates: Rates, kernels_ns: Array) -> tuple[Array, Array, Array]:
    """Return the host's work, its launches and the rows' own time, by row."""
    host, scale = float(rates.host[0]), {b: float(s[0]) for b, s in rates.scale.items()}
    issue = {
        RowKind.ISSUE: float(rates.issue[0]),
        RowKind.HOST_DATA: host * scale[Bound.HOST_DATA],
        RowKind.HOST_OPTIMIZER: host * scale[Bound.HOST_OPTIMIZER],
        RowKind.QUEUED_COPY: host * scale[Bound.TRANSFER],
        RowKind.BLOCKING_COPY: host * scale[Bound.TRANSFER],
    }
    launch = {
        RowKind.KERNEL: float(rates.launch_ns[0, 0]),
        RowKind.QUEUED_COPY: float(rates.copy_launch_ns[0, 0]),
        RowKind.GRAPH_LAUNCH: float(rates.graph_launch_ns[0, 0]),
    }
    factor = {
        RowKind.QUEUED_COPY: float(rates.copy[0]),
        RowKind.BLOCKING_COPY: float(rates.copy[0]),
        RowKind.REPLAYED_COPY: float(rates.copy[0]),
        RowKind.SYNC: float(rates.read[0]),
        RowKind.LOADER: host * scale[Bound.HOST_DATA],
    }
    fixed = {RowKind.SYNC: float(rates.sync_ns[0, 0])}
    rows = tape.rows
    return (
        rows.host_ns * _by_kind(issue, rows.kind),
        _by_kind(launch, rows.kind),
        rows.device_ns * _by_kind(factor, rows.kind) + _by_kind(fixed, rows.kind) + kernels_ns,
    )


def _by_kind(values: dict[RowKind, float], kinds: Indices) -> Array:
    return np.array([values.get(kind, 0.0) for kind in RowKind])[kinds]


def _point_kinds(tape: Tape, rates: Rates) -> Indices:
    """Return what each row does; what is free of charge waits for nothing."""
    has_syncs = rates.scale[Bound.SYNC][0] != 0
    has_copies = rates.scale[Bound.TRANSFER][0] != 0
    of_kind = {
        RowKind.KERNEL: KERNEL,
        RowKind.QUEUED_COPY: KERNEL if has_copies else LAUNCHES,
        RowKind.BLOCKING_COPY: COPY if has_copies else HOST,
        RowKind.REPLAYED_KERNEL: REPLAYED,
        RowKind.REPLAYED_COPY: REPLAYED if has_copies else HOST,
        RowKind.SYNC: SYNC if has_syncs else HOST,
        RowKind.LOADER: LOADER,
    }
    kinds = np.array([of_kind.get(kind, HOST) for kind in RowKind], dtype=np.intp)[tape.rows.kind]
    return np.where((kinds == KERNEL) & (tape.rows.launches > 1), LAUNCHES, kinds)


def _kept(kinds: Indices) -> Indices:
    """Return the points that remain when the host's own are merged into the next."""
    is_kept = kinds != HOST
    is_kept[-1:] = True
    return np.flatnonzero(is_kept)


def _merged(values: Array, rows: Indices) -> Array:
    """Return the sums of ``values`` up to and with each of ``rows``, from the one before on."""
    if not len(rows):
        return np.zeros(0)
    return np.add.reduceat(values, np.concatenate(([0], rows[:-1] + 1)))
