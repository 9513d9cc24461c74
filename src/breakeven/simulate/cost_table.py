"""The costs of a step's events on devices and a host, before any scenario.

Each point at which host and device meet has a row, and so has each event that only occupies the
host. Events that an edit does not change keep their rows. Arrays have one axis each for rows R,
programs P of equal structure, and devices D, in this order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from breakeven.cost import (
    VALUE_BYTES,
    Columns,
    Kernel,
    KernelTimes,
    Lowering,
    host_read_ns,
    is_compiled,
)
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.program import CostModel, Program
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Phase, Sync

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Lowered = tuple[Event, Lowering | None]


class RowKind(IntEnum):
    """The kind of a row; the first four and the last only occupy the host."""

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
    COMPILED_ISSUE = 11


_COPIES = frozenset({RowKind.QUEUED_COPY, RowKind.BLOCKING_COPY, RowKind.REPLAYED_COPY})
IS_COPY = np.array([kind in _COPIES for kind in RowKind])
_ON_DEVICES = _COPIES | {RowKind.SYNC, RowKind.LOADER}
_IS_LAUNCHED_ONCE = np.array([kind in _COPIES | {RowKind.GRAPH_LAUNCH} for kind in RowKind])


def row_kind(event: Event) -> RowKind:
    """Return the kind of an event's rows; for an operator of the device, that of its kernels."""
    match event:
        case Op() if not event.is_on_host:
            return RowKind.REPLAYED_KERNEL if event.is_replayed else RowKind.KERNEL
        case Op():
            is_update = event.phase is Phase.OPTIMIZER
            return RowKind.HOST_OPTIMIZER if is_update else RowKind.HOST_DATA
        case Copy() if event.is_replayed:
            return RowKind.REPLAYED_COPY
        case Copy():
            return RowKind.BLOCKING_COPY if event.is_blocking else RowKind.QUEUED_COPY
        case Sync():
            return RowKind.SYNC
        case HostWork():
            return RowKind.LOADER if event.num_workers else RowKind.HOST_DATA
        case GraphLaunch():
            return RowKind.GRAPH_LAUNCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Columns):
    """Columns of a cost table.

    Args:
        event: Position of the event in the trace: (R).
        kind: A `RowKind`: (R).
        host_ns: The host's own time, without launches: (R, P).
        device_ns: The time of a copy, of a sync's read, or of a batch of a loader: (R, P, D).
        kernel: Row of the kernel in `KernelTable`; -1 without one: (R, P).
        launches: Launches of the row: (R, P).
    """

    event: Indices
    kind: Indices
    host_ns: Array
    device_ns: Array
    kernel: Indices
    launches: Indices

    def __len__(self) -> int:
        return len(self.kind)


class KernelTable:
    """The different kernels of a cost table and of its edits, each priced once."""

    def __init__(self, costs: CostModel, devices: Sequence[DeviceSpec]) -> None:
        self.costs = costs
        self.devices = tuple(devices)
        self._rows: dict[Kernel | None, int] = {None: -1}
        self._timed: KernelTimes | None = None
        self._num_timed = 0

    def row(self, kernel: Kernel | None) -> int:
        """Return the row of a kernel; -1 for None."""
        return self._rows.setdefault(kernel, len(self._rows) - 1)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels by row."""
        return tuple(kernel for kernel in self._rows if kernel is not None)

    def times(self, rows: Indices) -> KernelTimes:
        """Return the times of the kernels in these rows."""
        new = self.kernels[self._num_timed :]
        if new or self._timed is None:
            times = self.costs.kernel_times(new, self.devices)
            self._timed = times if self._timed is None else self._timed.then(times)
            self._num_timed += len(new)
        return self._timed.take(rows)

    def on(self, columns: Sequence[int]) -> KernelTable:
        """Return the same kernels on some of the devices."""
        table = self.under(self.costs, [self.devices[column] for column in columns])
        if self._timed is not None:
            table._timed = self._timed.of(np.array(columns, dtype=np.intp))
            table._num_timed = self._num_timed
        return table

    def under(self, costs: CostModel, devices: Sequence[DeviceSpec]) -> KernelTable:
        """Return the same kernels under another cost model."""
        table = KernelTable(costs, devices)
        table._rows = dict(self._rows)
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Programs of equal structure on devices.

    Args:
        rows: The step, in the host's order.
        num_events: Events of the step.
        host: Host that issues the work.
        kernels: Kernels, with the devices and the cost model.
    """

    rows: Rows
    num_events: int
    host: HostSpec
    kernels: KernelTable

    def on(self, columns: Sequence[int], kernels: KernelTable) -> CostTable:
        """Return the table on some of its devices.

        Args:
            columns: Positions of the devices.
            kernels: The kernels on these; their cost model may differ from the table's only in
                the times of kernels.
        """
        device_ns = self.rows.device_ns[..., list(columns)]
        return replace(self, rows=replace(self.rows, device_ns=device_ns), kernels=kernels)

    def edited(self, replaced: Mapping[int, Sequence[Lowered]]) -> tuple[CostTable, Mask, Mask]:
        """Return the table of a changed step, and the rows that change.

        Args:
            replaced: New events of the only program by the position of the replaced event.

        Returns:
            The table, a mask of this table's rows that are gone, and a mask of its new rows.
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
        numbered = [
            (int(position[index]) + offset, (lowered,))
            for index, some in replaced.items()
            for offset, lowered in enumerate(some)
        ]
        new = _rows(numbered, 1, self.host, self.kernels)
        order = np.argsort(np.concatenate((kept.event, new.event)), kind="stable")
        table = replace(
            self,
            rows=kept.then(new).take(order),
            num_events=self.num_events + int(growth.sum()),
        )
        return table, is_gone, order >= len(kept)


def cost_table(
    programs: Sequence[Program], devices: Sequence[DeviceSpec], host: HostSpec
) -> CostTable:
    """Return the costs of programs whose events have the same kinds, one by one.

    Args:
        programs: Steps.
        devices: Devices that run them.
        host: Host that issues the work.
    """
    kernels = KernelTable(programs[0].costs, devices)
    lowered = (zip(p.trace.events, p.lowerings, strict=True) for p in programs)
    numbered = list(enumerate(zip(*lowered, strict=True)))
    rows = _rows(numbered, len(programs), host, kernels)
    return CostTable(rows=rows, num_events=len(numbered), host=host, kernels=kernels)


def _rows(
    numbered: Sequence[tuple[int, tuple[Lowered, ...]]],
    num_programs: int,
    host: HostSpec,
    kernels: KernelTable,
) -> Rows:
    """Return the rows of numbered events; each program has its own version of every event."""
    costs, devices = kernels.costs, kernels.devices
    positions: list[int] = []
    kinds: list[int] = []
    host_ns: list[float] = []
    rows: list[int] = []
    on_devices: dict[int, list[list[float]]] = {}
    # By kernels: equal operators share the object.
    of_kinds: dict[Hashable, tuple[list[int], list[float], list[int]]] = {}
    for index, lowered in numbered:
        first = lowered[0][0]
        if isinstance(first, Op) and not first.is_on_host:
            named = [(id(own), event.phase) for event, own in lowered]
            key = first.name, first.is_replayed, *named
            if key not in of_kinds:
                of_kinds[key] = _rows_of_operator(lowered, host, kernels)
            own_kinds, own_ns, own_rows = of_kinds[key]
            positions += [index] * len(own_kinds)
            kinds += own_kinds
            host_ns += own_ns
            rows += own_rows
            continue
        kind = row_kind(first)
        if kind in _ON_DEVICES:
            on_devices[len(kinds)] = [
                [_device_ns(event, device, costs) for device in devices] for event, _ in lowered
            ]
        positions.append(index)
        kinds.append(kind)
        host_ns += [_host_ns(event, host) for event, _ in lowered]
        rows += (-1,) * num_programs
    shape = (len(kinds), num_programs)
    device_ns = np.zeros((*shape, len(devices)))
    if on_devices:
        device_ns[list(on_devices)] = list(on_devices.values())
    kind_column = np.array(kinds, dtype=np.intp)
    kernel = np.array(rows, dtype=np.intp).reshape(shape)
    # The last entry is for rows without a kernel.
    of_kernels = np.array([*(each.launches for each in kernels.kernels), 0], dtype=np.intp)
    return Rows(
        event=np.array(positions, dtype=np.intp),
        kind=kind_column,
        host_ns=np.array(host_ns, dtype=np.float64).reshape(shape),
        device_ns=device_ns,
        kernel=kernel,
        launches=of_kernels[kernel] + _IS_LAUNCHED_ONCE[kind_column, None],
    )


def _rows_of_operator(
    lowered: tuple[Lowered, ...], host: HostSpec, kernels: KernelTable
) -> tuple[list[int], list[float], list[int]]:
    """Return the kinds of an operator's rows, and for each program their times and kernels."""
    first, num_programs = lowered[0][0], len(lowered)
    kind = row_kind(first)
    kinds: list[int] = []
    host_ns: list[float] = []
    rows: list[int] = []
    if kind is RowKind.KERNEL:
        for event, lowering in lowered:
            assert isinstance(event, Op)
            assert lowering is not None
            host_ns.append(kernels.costs.host_op_ns(event, lowering, host))
        is_issued_compiled = isinstance(first, Op) and is_compiled(first.name)
        kinds.append(RowKind.COMPILED_ISSUE if is_issued_compiled else RowKind.ISSUE)
        rows += (-1,) * num_programs
    runs = [() if lowering is None else lowering.kernels for _, lowering in lowered]
    # Programs may run different numbers of kernels.
    for own in zip_longest(*runs):
        kinds.append(kind)
        host_ns += (0.0,) * num_programs
        rows += map(kernels.row, own)
    return kinds, host_ns, rows


def _host_ns(event: Event, host: HostSpec) -> float:
    """Return the host's own time; for an operator of the CPU, the recorded one."""
    match event:
        case Op():
            return event.host_ns
        case HostWork():
            return event.taking_ns if event.num_workers else event.duration_ns
        case Copy() if not event.is_replayed:
            return host.op_ns
        case Sync():
            return host_read_ns(event, host)
        case Copy() | GraphLaunch():
            return 0.0


def _device_ns(event: Event, device: DeviceSpec, costs: CostModel) -> float:
    """Return the time of a copy on the device, of a sync's read, or of a loader's batch."""

    def copy_ns(num_bytes: float, *, is_pinned: bool = False) -> float:
        return costs.copy_ns(num_bytes, device=device, is_pinned=is_pinned)

    match event:
        case Copy():
            time_ns = copy_ns(event.num_bytes, is_pinned=event.is_pinned)
            if not event.is_blocking:
                # The fixed part of a copy's cost is the call and the host's wait. A queued copy has
                # neither: it is launched like a kernel, and its bytes occupy the device.
                time_ns -= copy_ns(1, is_pinned=event.is_pinned)
            return max(0.0, time_ns)
        case Sync() if event.num_bytes:
            more_ns = copy_ns(max(event.num_bytes, VALUE_BYTES)) - copy_ns(VALUE_BYTES)
            return costs.launch_costs(device).read_ns + max(0.0, more_ns)
        case Sync():
            return 0.0
        case HostWork():
            return per_batch_ns(event)
        case Op() | GraphLaunch():
            raise AssertionError(event)


def per_batch_ns(work: HostWork) -> float:
    """Return the time per batch of all of a loader's workers together."""
    return work.duration_ns / work.num_workers
