"""Programs, priced: from events and their costs to the points of a plan.

Arrays have one axis each for programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from breakeven.cost import Kernel, KernelTimes
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.bound import Bound
from breakeven.simulate.plan import Array, Plan, Point, PointKind
from breakeven.simulate.prices import moved_ns, per_batch_ns, read_ns, recorded_bound, recorded_ns
from breakeven.simulate.program import EventKind, Program
from breakeven.simulate.rates import rates_of
from breakeven.simulate.scenario import Scenario
from breakeven.trace import Copy, HostWork, Op, Sync


def build_plan(
    programs: Sequence[Program],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    scenarios: Sequence[Scenario],
) -> Plan:
    """Return the priced points of the programs; the host's work between two is the second's.

    Args:
        programs: Steps of equal kinds.
        devices: Devices.
        host: What issues the work.
        scenarios: Circumstances.
    """
    return _Planner(programs, devices, host, scenarios).plan()


class _Planner:
    def __init__(
        self,
        programs: Sequence[Program],
        devices: Sequence[DeviceSpec],
        host: HostSpec,
        scenarios: Sequence[Scenario],
    ) -> None:
        self._programs = programs
        self._devices = devices
        self._host = host
        self._costs = programs[0].costs
        self._shape = (len(programs), len(devices), len(scenarios))
        rates = rates_of(self._costs, devices, host, scenarios)
        self._rates = rates
        self._wait_sync = self._full(np.where(rates.scale[Bound.SYNC] == 0, -np.inf, 0.0))
        self._wait_copy = self._full(np.where(rates.scale[Bound.TRANSFER] == 0, -np.inf, 0.0))
        self._zero = np.zeros(self._shape)
        self._full_latency = self._full(rates.latency_ns)
        self._full_gap = self._full(rates.gap_ns)

        self._points: list[Point] = []
        self._pending: Array = self._full(rates.lead_ns).copy()
        self._dispatch: dict[int, float] = {}
        self._time_rows: Array = np.zeros((0, 0, 0))
        self._kernel_rows: dict[tuple[int, Kernel], int] = {}

    def plan(self) -> Plan:
        """Return the plan."""
        self._price_kernels()
        for index, kind in enumerate(self._programs[0].kinds):
            match kind:
                case EventKind.DEVICE_OP | EventKind.REPLAYED_OP:
                    self._device_op(index, is_replayed=kind is EventKind.REPLAYED_OP)
                case EventKind.HOST_OP | EventKind.HOST_WORK:
                    self._host_work(index)
                case EventKind.BLOCKING_COPY | EventKind.QUEUED_COPY:
                    self._copy(index, is_blocking=kind is EventKind.BLOCKING_COPY)
                case EventKind.REPLAYED_COPY:
                    self._replayed_copy(index)
                case EventKind.GRAPH_LAUNCH:
                    self._pending += self._rates.graph_launch_ns
                case EventKind.SYNC:
                    self._sync_point(index)
                case EventKind.LOADER_WAIT:
                    self._loader(index)
        if self._pending.any():
            self._add(len(self._programs[0].trace.events), PointKind.HOST)
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
        """Time the distinct kernels of each program; the last row, all zero, is the absent one."""
        counts = [Counter(program.kernels) for program in self._programs]
        keys = [(p, kernel) for p, own in enumerate(counts) for kernel in own]
        self._kernel_rows = {key: row for row, key in enumerate(keys)}
        self._time_rows = np.zeros((len(keys) + 1, *self._shape[1:]))
        if not keys:
            return
        times = self._costs.kernel_times([kernel for _, kernel in keys], self._devices)
        first = 0
        for own in counts:
            rows = slice(first, first + len(own))
            first += len(own)
            of_program = KernelTimes(
                time_ns=times.time_ns[rows],
                log_sigma=times.log_sigma[rows],
                shared_log_sigma=times.shared_log_sigma[rows],
                is_memory_bound=times.is_memory_bound[rows],
            )
            self._time_rows[rows] = self._rates.kernel_ns(of_program, tuple(own.values()))

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

    def _device_op(self, index: int, *, is_replayed: bool) -> None:
        lowerings = [program.lowerings[index] for program in self._programs]
        if not is_replayed:
            self._pending += (
                self._column([self._dispatch_ns(program, index) for program in self._programs])
                * self._rates.issue
            )
        kernels = [() if lowering is None else lowering.kernels for lowering in lowerings]
        for slot in range(max(map(len, kernels))):
            self._kernel(
                index,
                [own[slot] if slot < len(own) else None for own in kernels],
                is_replayed=is_replayed,
            )

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

    def _kernel(self, index: int, kernels: list[Kernel | None], *, is_replayed: bool) -> None:
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
        beyond = np.maximum(counts - 1, 0)[:, None, None]
        if is_replayed:
            # All of its launches are there when the graph starts.
            time = time + beyond * self._rates.gap_ns
            counts = np.zeros_like(counts)
        elif counts.max() > 1:
            more = self._full(beyond * self._rates.launch_ns)
            last = time / np.maximum(counts, 1)[:, None, None]
            tail = (self._full_latency if latency is None else latency) + last
            time = time + beyond * self._rates.gap_ns
        self._add(
            index,
            PointKind.KERNEL,
            launch_ns=np.minimum(counts, 1)[:, None, None] * self._rates.launch_ns,
            device_ns=time,
            latency_ns=latency,
            gap_ns=gap,
            more_launches_ns=more,
            tail_ns=tail,
            last_ns=last,
            launches=int(counts.max()),
        )

    def _host_work(self, index: int) -> None:
        for p, program in enumerate(self._programs):
            event = program.trace.events[index]
            assert isinstance(event, Op | HostWork)
            scale = self._rates.scale[recorded_bound(event)]
            self._pending[p] += recorded_ns(event) * self._rates.host * scale

    def _copy(self, index: int, *, is_blocking: bool) -> None:
        rates = self._rates
        scale = rates.scale[Bound.TRANSFER]
        self._pending += self._host.op_ns * rates.host * scale
        time = self._on_devices(index) * rates.copy
        if is_blocking:
            self._add(index, PointKind.BLOCKING_COPY, device_ns=time, wait_ns=self._wait_copy)
        else:
            self._add(
                index,
                PointKind.QUEUED_COPY,
                launch_ns=rates.copy_launch_ns,
                device_ns=time,
                latency_ns=self._full_latency + self._wait_copy,
                gap_ns=self._full_gap * scale,
                launches=1,
            )

    def _replayed_copy(self, index: int) -> None:
        rates = self._rates
        self._add(
            index,
            PointKind.QUEUED_COPY,
            device_ns=self._on_devices(index) * rates.copy,
            latency_ns=self._full_latency + self._wait_copy,
            gap_ns=self._full_gap * rates.scale[Bound.TRANSFER],
        )

    def _sync_point(self, index: int) -> None:
        self._add(index, PointKind.SYNC, wait_ns=self._wait_sync)
        # The host pays this once the device is idle, so it counts into what follows the wait.
        cost = self._rates.sync_ns + self._on_devices(index) * self._rates.read
        self._pending = self._full(cost).copy()

    def _on_devices(self, index: int) -> Array:
        """Return the times of a copy, or of what a sync reads, shaped (P, D, 1)."""
        times = np.zeros((*self._shape[:2], 1))
        for p, program in enumerate(self._programs):
            event = program.trace.events[index]
            assert isinstance(event, Copy | Sync)
            for d, device in enumerate(self._devices):
                if isinstance(event, Copy):
                    times[p, d, 0] = moved_ns(event, device, self._costs)
                else:
                    times[p, d, 0] = read_ns(event, device, self._costs)
        return times

    def _loader(self, index: int) -> None:
        durations: list[float] = []
        for program in self._programs:
            work = program.trace.events[index]
            assert isinstance(work, HostWork)
            durations.append(per_batch_ns(work))
        factor = self._rates.host * self._rates.scale[Bound.HOST_DATA]
        self._add(index, PointKind.LOADER, device_ns=self._full(self._column(durations) * factor))

    def _column(self, values: Sequence[float]) -> Array:
        """Return one value per program, shaped (P, 1, 1)."""
        return np.array(values, dtype=np.float64)[:, None, None]
