"""Two timelines, host and device, of a step that is repeated until its period settles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.cost_table import Array, CostTable, RowKind, cost_table, row_kind
from breakeven.simulate.priced_step import (
    COPY,
    HOST,
    KERNEL,
    LOADER,
    RUN_IN_ORDER,
    SYNC,
    Launches,
    PricedStep,
    price_all,
)
from breakeven.simulate.program import Program
from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, Timeline, settled_period, timeline_of
from breakeven.simulate.scenario import TYPICAL, Scenario

# Arrays of one chunk of devices stay within some 100 MB.
_MAX_ELEMENTS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """Steps of several programs on several devices under several scenarios.

    Args:
        step_ns: Time of a step in steady state, shaped (programs, devices, scenarios).
        host_busy_ns: The host's own work per step, in the same shape.
        device_busy_ns: Kernels and copies per step, in the same shape.
        programs: First axis.
        devices: Second axis.
        scenarios: Third axis.
        host: What issues the work.
        queue_depth: Launches that may wait.
    """

    step_ns: Array
    host_busy_ns: Array
    device_busy_ns: Array
    programs: tuple[Program, ...]
    devices: tuple[DeviceSpec, ...]
    scenarios: tuple[Scenario, ...]
    host: HostSpec
    queue_depth: int

    def timeline(self, program: int = 0, device: int = 0, scenario: int = 0) -> Timeline:
        """Return one configuration in detail; it is simulated again for that."""
        table = cost_table((self.programs[program],), (self.devices[device],), self.host)
        return timeline_of(table, self.scenarios[scenario], queue_depth=self.queue_depth)


def simulate(
    programs: Sequence[Program],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    *,
    scenarios: Sequence[Scenario] = (TYPICAL,),
    queue_depth: int = LAUNCH_QUEUE_DEPTH,
) -> Timelines:
    """Return the steady state of each program on each device under each scenario.

    The host issues the events in order. A kernel starts a latency after its launch and a gap after
    the kernel before it, on one stream. A blocking copy and a sync make the host wait until the
    device is idle. A full launch queue makes it wait too. Steps follow each other without a break,
    so the device may lag behind the host from one step to the next; the time of a step is the
    period into which this settles, and a share of what overlaps within it (see ``costs``).

    Args:
        programs: Steps, of equal structure or not.
        devices: Devices.
        host: What issues the work.
        scenarios: Circumstances.
        queue_depth: Launches that may wait; counted on the program with the most, where several
            of equal structure are simulated together.

    Raises:
        ValueError: There is nothing to simulate.
    """
    if not programs or not devices or not scenarios:
        raise ValueError("simulate needs at least one program, device and scenario")
    shape = (len(programs), len(devices), len(scenarios))
    step, host_busy, device_busy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    groups: dict[tuple[RowKind, ...], list[int]] = {}
    for index, program in enumerate(programs):
        groups.setdefault(tuple(map(row_kind, program.trace.events)), []).append(index)
    for members in groups.values():
        group = [programs[index] for index in members]
        num_slots = max(len(p.kernels) + len(p.trace.events) for p in group)
        per_device = num_slots * len(group) * len(scenarios)
        chunk = max(1, _MAX_ELEMENTS // max(1, per_device))
        for first in range(0, len(devices), chunk):
            some = slice(first, first + chunk)
            table = cost_table(group, devices[some], host)
            priced, step[members, some] = settled(table, scenarios, queue_depth=queue_depth)
            host_busy[members, some] = priced.host_ns
            device_busy[members, some] = priced.device_ns
    return Timelines(
        step_ns=step,
        host_busy_ns=host_busy,
        device_busy_ns=device_busy,
        programs=tuple(programs),
        devices=tuple(devices),
        scenarios=tuple(scenarios),
        host=host,
        queue_depth=queue_depth,
    )


def settled(
    table: CostTable,
    scenarios: Sequence[Scenario] = (TYPICAL,),
    *,
    queue_depth: int = LAUNCH_QUEUE_DEPTH,
) -> tuple[PricedStep[Array], Array]:
    """Return the priced steps of a cost table, and their times in steady state (see `simulate`).

    Args:
        table: Programs of equal structure on devices.
        scenarios: Circumstances.
        queue_depth: Launches that may wait.
    """
    priced = price_all(table, scenarios)
    period_ns = settled_period(_Run(priced, queue_depth).advance)
    return priced, priced.step_ns(period_ns)


class _Run:
    """The state of the timelines while steps go by."""

    def __init__(self, step: PricedStep[Array], queue_depth: int) -> None:
        self._step = step
        self._queue_depth = queue_depth
        self._host, self._device, self._loader = (np.zeros_like(step.host_ns) for _ in range(3))
        # A queue that holds a whole step never starves the device while the host waits for room.
        self._may_fill = step.num_launches > queue_depth
        self._queue: deque[tuple[int, Array]] = deque()
        self._num_queued = 0

    def advance(self) -> Array:
        """Let one step go by; return when host and device were through with it."""
        step, host, device, loader = self._step, self._host, self._device, self._loader
        host += step.lead_ns
        for kind, before_ns, own_ns, launches in step.points:
            host += before_ns
            if kind in RUN_IN_ORDER:
                is_queued = self._may_fill and kind == KERNEL
                if is_queued:
                    self._wait_for_room(1)
                device += step.gap_ns
                np.maximum(device, host + step.latency_ns, out=device)
                if is_queued:
                    self._queue.append((1, device.copy()))
                device += own_ns
            elif launches is not None:
                self._launch(launches, own_ns)
            elif kind == SYNC:
                np.maximum(host, device + step.sync_wait_ns, out=host)
                host += own_ns
            elif kind == COPY:
                np.maximum(host, device + step.copy_wait_ns, out=host)
                host += own_ns
                np.maximum(device, host + step.copy_wait_ns, out=device)
            elif kind == LOADER:
                loader += own_ns
                np.maximum(host, loader, out=host)
            else:
                assert kind == HOST
        return np.maximum(host, device)

    def _launch(self, launches: Launches[Array], own_ns: Array) -> None:
        # What a graph replays takes no place in the queue.
        is_queued = self._may_fill and launches.count > 0
        if is_queued:
            self._wait_for_room(launches.count)
        self._device += launches.gap_ns
        np.maximum(self._device, self._host + launches.latency_ns, out=self._device)
        self._device += own_ns
        self._host += launches.more_ns
        # Launches of equal kernels end with the first or the last of them as the bottleneck.
        np.maximum(self._device, self._host + launches.tail_ns, out=self._device)
        if is_queued:
            self._queue.append((launches.count, self._device - launches.last_ns))

    def _wait_for_room(self, count: int) -> None:
        """Make the host wait until the queue has room; an entry leaves it when it starts."""
        self._num_queued += count
        while self._num_queued > self._queue_depth and self._queue:
            count, start = self._queue.popleft()
            self._num_queued -= count
            np.maximum(self._host, start, out=self._host)
