"""A step on one device as columns of numbers, to change and to price it many times over.

A tape holds costs before any scenario, one row for each point at which host and device meet (see
`PointKind`), and one for each event that keeps the host alone busy. What an edit does not touch
keeps its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from breakeven.cost import Kernel, KernelTimes, Lowering
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.bound import Bound
from breakeven.simulate.cost_model import CostModel
from breakeven.simulate.plan import Array
from breakeven.simulate.prices import moved_ns, per_batch_ns, read_ns, recorded_bound, recorded_ns
from breakeven.simulate.program import Program
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Sync

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Lowered = tuple[Event, Lowering | None]


class RowKind(IntEnum):
    """What a row of a tape is; the first four keep the host alone busy."""

    ISSUE = 0
    HOST_DATA = 1
    HOST_OPTIMIZER = 2
    GRAPH_LAUNCH = 3
    KERNEL = 4
    QUEUED_COPY = 5
    BLOCKING_COPY = 6
    SYNC = 7
    LOADER = 8
    REPLAYED_KERNEL = 9
    REPLAYED_COPY = 10


_HOST_KINDS = {Bound.HOST_DATA: RowKind.HOST_DATA, Bound.HOST_OPTIMIZER: RowKind.HOST_OPTIMIZER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of a tape, all of one length.

    Args:
        event: Position of the event in the trace.
        kind: A `RowKind`.
        host_ns: The host's own time, launches apart.
        device_ns: The time of a copy, of what a sync reads, or of a batch of a loader.
        kernel: Row of the kernel in the table of the tape; -1 where there is none.
        launches: Launches of that kernel.
    """

    event: Indices
    kind: Indices
    host_ns: Array
    device_ns: Array
    kernel: Indices
    launches: Indices

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, order: Indices) -> Rows:
        """Return the rows at these positions."""
        return Rows(**{f.name: getattr(self, f.name)[order] for f in fields(self)})

    def then(self, others: Rows) -> Rows:
        """Return these rows and the others."""
        return Rows(
            **{
                f.name: np.concatenate((getattr(self, f.name), getattr(others, f.name)))
                for f in fields(self)
            }
        )


class KernelTable:
    """The different kernels of a tape and of its edits on one device, each timed once."""

    def __init__(self, costs: CostModel, device: DeviceSpec) -> None:
        self._costs = costs
        self._device = device
        self._rows: dict[Kernel, int] = {}
        self._times: list[KernelTimes] = []
        self._num_timed = 0

    def row(self, kernel: Kernel) -> int:
        """Return the row of a kernel."""
        return self._rows.setdefault(kernel, len(self._rows))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels by row."""
        return tuple(self._rows)

    def times(self, rows: Indices) -> KernelTimes:
        """Return the times of the kernels in these rows."""
        new = self.kernels[self._num_timed :]
        if new:
            self._times.append(self._costs.kernel_times(new, (self._device,)))
            self._num_timed += len(new)
            self._times = [_joined(self._times)]
        (table,) = self._times
        return KernelTimes(
            time_ns=table.time_ns[rows],
            log_sigma=table.log_sigma[rows],
            shared_log_sigma=table.shared_log_sigma[rows],
            is_memory_bound=table.is_memory_bound[rows],
        )


def _joined(parts: Sequence[KernelTimes]) -> KernelTimes:
    return KernelTimes(
        time_ns=np.concatenate([part.time_ns for part in parts]),
        log_sigma=np.concatenate([part.log_sigma for part in parts]),
        shared_log_sigma=np.concatenate([part.shared_log_sigma for part in parts]),
        is_memory_bound=np.concatenate([part.is_memory_bound for part in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """A step on one device.

    Args:
        rows: The step, in the order in which the host goes through it.
        num_events: Events of the step.
        costs: The cost model.
        device: The device.
        host: What issues the work.
        table: Kernels.
    """

    rows: Rows
    num_events: int
    costs: CostModel
    device: DeviceSpec
    host: HostSpec
    table: KernelTable

    def edited(self, replaced: Mapping[int, Sequence[Lowered]]) -> tuple[Tape, Mask, Mask]:
        """Return the tape of a changed step, with what it changes.

        Args:
            replaced: What stands in the place of events, by position.

        Returns:
            The tape, which of the rows of this one are gone, and which of its rows are new.
        """
        growth = np.zeros(self.num_events, dtype=np.intp)
        is_replaced = np.zeros(self.num_events, dtype=np.bool_)
        for index, lowered in replaced.items():
            growth[index] = len(lowered) - 1
            is_replaced[index] = True
        position = np.arange(self.num_events) + np.cumsum(growth) - growth
        is_gone = is_replaced[self.rows.event]
        kept = self.rows.take(np.flatnonzero(~is_gone))
        kept = replace(kept, event=position[kept.event])
        new = _rows(
            [
                (int(position[index]) + offset, event, lowering)
                for index, lowered in replaced.items()
                for offset, (event, lowering) in enumerate(lowered)
            ],
            self,
        )
        order = np.argsort(np.concatenate((kept.event, new.event)), kind="stable")
        tape = replace(
            self,
            rows=kept.then(new).take(order),
            num_events=self.num_events + int(growth.sum()),
        )
        return tape, is_gone, order >= len(kept)


def record(program: Program, device: DeviceSpec, host: HostSpec) -> Tape:
    """Return the tape of a program."""
    empty = Tape(
        rows=_columns([]),
        num_events=0,
        costs=program.costs,
        device=device,
        host=host,
        table=KernelTable(program.costs, device),
    )
    lowered = zip(program.trace.events, program.lowerings, strict=True)
    numbered = [(index, event, lowering) for index, (event, lowering) in enumerate(lowered)]
    return replace(empty, rows=_rows(numbered, empty), num_events=len(numbered))


def _rows(lowered: Sequence[tuple[int, Event, Lowering | None]], tape: Tape) -> Rows:
    """Return the rows of numbered events."""
    # Event, kind, host, device, kernel, launches.
    found: list[tuple[int, int, float, float, int, int]] = []
    costs, device, host = tape.costs, tape.device, tape.host
    for index, event, lowering in lowered:
        match event:
            case Op() if lowering is not None:
                kind = RowKind.REPLAYED_KERNEL if event.is_replayed else RowKind.KERNEL
                if not event.is_replayed:
                    host_ns = costs.host_op_ns(event, lowering, host)
                    found.append((index, RowKind.ISSUE, host_ns, 0.0, -1, 0))
                found += [
                    (index, kind, 0.0, 0.0, tape.table.row(kernel), kernel.launches)
                    for kernel in lowering.kernels
                ]
            case Copy() if event.is_replayed:
                copy_ns = moved_ns(event, device, costs)
                found.append((index, RowKind.REPLAYED_COPY, 0.0, copy_ns, -1, 1))
            case Copy():
                kind = RowKind.BLOCKING_COPY if event.is_blocking else RowKind.QUEUED_COPY
                copy_ns = moved_ns(event, device, costs)
                found.append((index, kind, host.op_ns, copy_ns, -1, 1))
            case Sync():
                found.append((index, RowKind.SYNC, 0.0, read_ns(event, device, costs), -1, 0))
            case HostWork() if event.num_workers:
                found.append((index, RowKind.LOADER, 0.0, per_batch_ns(event), -1, 0))
            case GraphLaunch():
                found.append((index, RowKind.GRAPH_LAUNCH, 0.0, 0.0, -1, 0))
            case Op() | HostWork():
                kind = _HOST_KINDS[recorded_bound(event)]
                found.append((index, kind, float(recorded_ns(event)), 0.0, -1, 0))
    return _columns(found)


def _columns(found: Sequence[tuple[int, int, float, float, int, int]]) -> Rows:
    event, kind, host_ns, device_ns, kernel, launches = (
        zip(*found, strict=True) if found else [()] * 6
    )
    return Rows(
        event=np.array(event, dtype=np.intp),
        kind=np.array(kind, dtype=np.intp),
        host_ns=np.array(host_ns, dtype=np.float64),
        device_ns=np.array(device_ns, dtype=np.float64),
        kernel=np.array(kernel, dtype=np.intp),
        launches=np.array(launches, dtype=np.intp),
    )
