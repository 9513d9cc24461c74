"""Programs, priced: from events and their costs to the points of a plan.

Arrays have one axis each for programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from breakeven.cost import Kernel
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate._bound import Bound
from breakeven.simulate._plan import Array, Plan, Point, PointKind
from breakeven.simulate._program import EventKind, Program
from breakeven.simulate._scenario import Scenario
from breakeven.simulate._spread import spread_in_step
from breakeven.trace import Copy, HostWork, Op, Phase, Sync

# Pageable copies pass through a staging buffer at the pace of the host's memcpy, which varies
# between machines by about a third in either direction (90 %).
_COPY_LOG_SIGMA = 0.18
# What a sync reads back within its fixed cost: one number of the widest dtype but complex128.
_VALUE_BYTES = 8


def build_plan(
    programs: Sequence[Program],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    scenarios: Sequence[Scenario],
    *,
    is_merged: bool = True,
) -> Plan:
    """Return the priced points of the programs.

    Args:
        programs: Steps of equal kinds.
        devices: Devices.
        host: What issues the work.
        scenarios: Circumstances.
        is_merged: The host's work between two points is added to the second; otherwise each event
            gets a point of its own.
    """
    return _Planner(programs, devices, host, scenarios, is_merged=is_merged).plan()


class _Planner:
    def __init__(
        self,
        programs: Sequence[Program],
        devices: Sequence[DeviceSpec],
        host: HostSpec,
        scenarios: Sequence[Scenario],
        *,
        is_merged: bool,
    ) -> None:
        self._programs = programs
        self._devices = devices
        self._host = host
        self._is_merged = is_merged
        self._costs = programs[0].costs
        self._shape = (len(programs), len(devices), len(scenarios))

        deviation = np.array([scenario.deviation for scenario in scenarios])
        self._deviation = deviation
        self._scale = {
            bound: np.array([scenario.scale(bound) for scenario in scenarios]) for bound in Bound
        }
        is_captured = np.array([scenario.is_captured for scenario in scenarios])
        self._host_factor = np.exp(deviation * host.log_sigma)
        self._copy_factor = np.exp(deviation * _COPY_LOG_SIGMA) * self._scale[Bound.TRANSFER]
        self._issue_factor = self._host_factor * self._scale[Bound.LAUNCH] * ~is_captured

        launches = [self._costs.launch_costs(device) for device in devices]
        sigma = np.array([cost.log_sigma for cost in launches])
        factor = np.exp(deviation * sigma[:, None])

        def column(values: list[float]) -> Array:
            return np.array(values)[:, None] * factor

        self._launch = column([cost.launch_ns for cost in launches]) * (
            self._scale[Bound.LAUNCH] * ~is_captured
        )
        self._copy_launch = (
            column([cost.launch_ns for cost in launches]) * self._scale[Bound.TRANSFER]
        )
        self._latency = column([cost.latency_ns for cost in launches])
        self._gap = column([cost.gap_ns for cost in launches])
        graph = column([cost.graph_launch_ns for cost in launches])
        self._sync = column([cost.sync_ns for cost in launches]) * self._scale[Bound.SYNC]
        self._wait_sync = self._full(np.where(self._scale[Bound.SYNC] == 0, -np.inf, 0.0))
        self._wait_copy = self._full(np.where(self._scale[Bound.TRANSFER] == 0, -np.inf, 0.0))
        self._zero = np.zeros(self._shape)
        self._full_latency = self._full(self._latency)
        self._full_gap = self._full(self._gap)

        self._points: list[Point] = []
        # A captured step costs the host one launch, whatever its size.
        self._pending: Array = self._full(graph * is_captured).copy()
        self._dispatch: dict[int, float] = {}
        self._time_rows: Array = np.zeros((0, 0, 0))
        self._kernel_rows: dict[tuple[int, Kernel], int] = {}

    def plan(self) -> Plan:
        """Return the plan."""
        self._price_kernels()
        for index, kind in enumerate(self._programs[0].kinds):
            match kind:
                case EventKind.DEVICE_OP:
                    self._device_op(index)
                case EventKind.HOST_OP | EventKind.HOST_WORK:
                    self._host_work(index)
                case EventKind.BLOCKING_COPY | EventKind.QUEUED_COPY:
                    self._copy(index, is_blocking=kind is EventKind.BLOCKING_COPY)
                case EventKind.SYNC:
                    self._sync_point(index)
                case EventKind.LOADER_WAIT:
                    self._loader(index)
        self._flush(len(self._programs[0].trace.events), is_end=True)
        host = sum((point.host_ns for point in self._points), start=self._zero)
        for point in self._points:
            if point.more_launches_ns is not None:
                host = host + point.more_launches_ns
        device = sum(
            (p.device_ns for p in self._points if p.kind not in (PointKind.LOADER, PointKind.SYNC)),
            start=self._zero,
        )
        return Plan(points=tuple(self._points), host_ns=host, device_ns=device)

    def _full(self, values: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(values, self._shape))

    def _price_kernels(self) -> None:
        """Time the distinct kernels of each program; the last row, all zero, is the absent one.

        How far a kernel deviates depends on the program that it is part of.
        """
        counts = [Counter(program.kernels) for program in self._programs]
        keys = [(p, kernel) for p, own in enumerate(counts) for kernel in own]
        self._kernel_rows = {key: row for row, key in enumerate(keys)}
        self._time_rows = np.zeros((len(keys) + 1, *self._shape[1:]))
        if not keys:
            return
        times = self._costs.kernel_times([kernel for _, kernel in keys], self._devices)
        deviation, inverse = np.unique(self._deviation, return_inverse=True)
        first = 0
        for own in counts:
            rows = slice(first, first + len(own))
            first += len(own)
            time_ns = times.time_ns[rows]
            spread = spread_in_step(
                time_ns, times.log_sigma[rows], times.shared_log_sigma[rows], tuple(own.values())
            )
            factor = np.exp(spread[..., None] * deviation)[..., inverse]
            scale = np.where(
                times.is_memory_bound[rows, :, None],
                self._scale[Bound.MEMORY],
                self._scale[Bound.COMPUTE],
            )
            self._time_rows[rows] = time_ns[..., None] * factor * scale

    def _flush(self, index: int, *, is_end: bool = False) -> None:
        """Give the host's pending work a point of its own, where it may not be merged."""
        if self._pending.any() and (is_end or not self._is_merged):
            self._add(index, PointKind.HOST)

    def _add(
        self,
        index: int,
        kind: PointKind,
        *,
        launch_ns: Array | None = None,
        device_ns: Array | None = None,
        latency_ns: Array | None = None,
        gap_ns: Array | None = None,
        wait_ns: Array | None = None,
        more_launches_ns: Array | None = None,
        tail_ns: Array | None = None,
        last_ns: Array | None = None,
        launches: int = 0,
    ) -> None:
        host = self._pending if launch_ns is None else self._pending + launch_ns
        self._points.append(
            Point(
                event=index,
                kind=kind,
                host_ns=self._full(host),
                device_ns=self._zero if device_ns is None else device_ns,
                latency_ns=self._full_latency if latency_ns is None else latency_ns,
                gap_ns=self._full_gap if gap_ns is None else gap_ns,
                wait_ns=self._zero if wait_ns is None else wait_ns,
                more_launches_ns=more_launches_ns,
                tail_ns=tail_ns,
                last_ns=last_ns,
                launches=launches,
            )
        )
        self._pending = np.zeros(self._shape)

    def _device_op(self, index: int) -> None:
        lowerings = [program.lowerings[index] for program in self._programs]
        self._pending += (
            self._column([self._dispatch_ns(program, index) for program in self._programs])
            * self._issue_factor
        )
        kernels = [() if lowering is None else lowering.kernels for lowering in lowerings]
        for slot in range(max(map(len, kernels))):
            self._kernel(index, [own[slot] if slot < len(own) else None for own in kernels])
        self._flush(index)

    def _dispatch_ns(self, program: Program, index: int) -> float:
        op, lowering = program.trace.events[index], program.lowerings[index]
        assert isinstance(op, Op)
        assert lowering is not None
        # Programs at several batch sizes, and edited ones, share most of their operators.
        value = self._dispatch.get(id(op))
        if value is None:
            value = self._costs.host_op_ns(op, lowering, self._host)
            self._dispatch[id(op)] = value
        return value

    def _kernel(self, index: int, kernels: list[Kernel | None]) -> None:
        absent = len(self._kernel_rows)
        rows = [
            absent if kernel is None else self._kernel_rows[p, kernel]
            for p, kernel in enumerate(kernels)
        ]
        counts = np.array([0 if kernel is None else kernel.launches for kernel in kernels])
        time = self._time_rows[rows]
        latency, gap = None, None
        if not counts.all():
            is_absent = (counts == 0)[:, None, None]
            latency = np.where(is_absent, -np.inf, self._full_latency)
            gap = np.where(is_absent, 0.0, self._full_gap)
        more, tail, last = None, None, None
        if counts.max() > 1:
            beyond = np.maximum(counts - 1, 0)[:, None, None]
            more = self._full(beyond * self._launch)
            last = time / np.maximum(counts, 1)[:, None, None]
            tail = (self._full_latency if latency is None else latency) + last
            time = time + beyond * self._gap
        self._add(
            index,
            PointKind.KERNEL,
            launch_ns=np.minimum(counts, 1)[:, None, None] * self._launch,
            device_ns=time,
            latency_ns=latency,
            gap_ns=gap,
            more_launches_ns=more,
            tail_ns=tail,
            last_ns=last,
            launches=int(counts.max()),
        )

    def _host_work(self, index: int) -> None:
        event = self._programs[0].trace.events[index]
        is_optimizer = event.phase is Phase.OPTIMIZER and isinstance(event, Op)
        bound = Bound.HOST_OPTIMIZER if is_optimizer else Bound.HOST_DATA
        durations = [_recorded_ns(program, index) for program in self._programs]
        self._pending += self._column(durations) * self._host_factor * self._scale[bound]
        self._flush(index)

    def _copy(self, index: int, *, is_blocking: bool) -> None:
        scale = self._scale[Bound.TRANSFER]
        self._pending += self._host.op_ns * self._host_factor * scale
        time = self._copy_times(index, is_blocking=is_blocking) * self._copy_factor
        if is_blocking:
            self._add(index, PointKind.BLOCKING_COPY, device_ns=time, wait_ns=self._wait_copy)
        else:
            self._add(
                index,
                PointKind.QUEUED_COPY,
                launch_ns=self._copy_launch,
                device_ns=time,
                latency_ns=self._full_latency + self._wait_copy,
                gap_ns=self._full_gap * scale,
                launches=1,
            )

    def _copy_times(self, index: int, *, is_blocking: bool) -> Array:
        """Return the times of a copy on each device, for each program.

        The fixed part of a copy's cost is the call and the host's wait for it. A queued copy has
        neither: it is launched like a kernel and keeps the device busy while its bytes move.
        """
        times = np.zeros((*self._shape[:2], 1))
        for p, program in enumerate(self._programs):
            copy = program.trace.events[index]
            assert isinstance(copy, Copy)
            for d, device in enumerate(self._devices):
                time = self._costs.copy_ns(copy.num_bytes, device=device, is_pinned=copy.is_pinned)
                if not is_blocking:
                    time -= self._costs.copy_ns(1, device=device, is_pinned=copy.is_pinned)
                times[p, d, 0] = max(0.0, time)
        return times

    def _sync_point(self, index: int) -> None:
        # The sync's fixed cost already covers a read of one value; only more bytes take longer.
        extra = np.zeros((*self._shape[:2], 1))
        for p, program in enumerate(self._programs):
            sync = program.trace.events[index]
            assert isinstance(sync, Sync)
            if sync.num_bytes > _VALUE_BYTES:
                for d, device in enumerate(self._devices):
                    one, all_bytes = (
                        self._costs.copy_ns(size, device=device, is_pinned=False)
                        for size in (_VALUE_BYTES, sync.num_bytes)
                    )
                    extra[p, d, 0] = max(0.0, all_bytes - one)
        factor = np.exp(self._deviation * _COPY_LOG_SIGMA) * self._scale[Bound.SYNC]
        self._add(index, PointKind.SYNC, wait_ns=self._wait_sync)
        # The host pays this once the device is idle, so it counts into what follows the wait.
        self._pending = self._full(self._sync + extra * factor).copy()
        self._flush(index)

    def _loader(self, index: int) -> None:
        durations: list[float] = []
        for program in self._programs:
            work = program.trace.events[index]
            assert isinstance(work, HostWork)
            durations.append(work.duration_ns / work.num_workers)
        factor = self._host_factor * self._scale[Bound.HOST_DATA]
        self._add(index, PointKind.LOADER, device_ns=self._full(self._column(durations) * factor))

    def _column(self, values: Sequence[float]) -> Array:
        """Return one value per program, shaped (P, 1, 1)."""
        return np.array(values, dtype=np.float64)[:, None, None]


def _recorded_ns(program: Program, index: int) -> float:
    event = program.trace.events[index]
    if isinstance(event, Op):
        return event.host_ns
    assert isinstance(event, HostWork)
    return event.duration_ns
