"""Two timelines, host and device, of a step that is repeated until its period settles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.plan import Array, Plan, Point, PointKind
from breakeven.simulate.planner import build_plan
from breakeven.simulate.program import EventKind, Program
from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, MAX_STEPS, MIN_STEPS, SETTLED_FRACTION
from breakeven.simulate.scenario import TYPICAL, Scenario
from breakeven.simulate.spans import Timeline, timeline_of
from breakeven.simulate.tape import record

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
        tape = record(self.programs[program], self.devices[device], self.host)
        return timeline_of(tape, self.scenarios[scenario], queue_depth=self.queue_depth)


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
    groups: dict[tuple[EventKind, ...], list[int]] = {}
    for index, program in enumerate(programs):
        groups.setdefault(program.kinds, []).append(index)
    for members in groups.values():
        group = [programs[index] for index in members]
        num_slots = max(len(p.kernels) + len(p.trace.events) for p in group)
        per_device = num_slots * len(group) * len(scenarios)
        chunk = max(1, _MAX_ELEMENTS // max(1, per_device))
        for first in range(0, len(devices), chunk):
            some = slice(first, first + chunk)
            plan = build_plan(group, devices[some], host, scenarios)
            period = _Run(plan, queue_depth).settle()
            step[members, some] = _with_overlap_loss(period, plan, group[0])
            host_busy[members, some] = plan.host_ns
            device_busy[members, some] = plan.device_ns
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


def _with_overlap_loss(period: Array, plan: Plan, program: Program) -> Array:
    """Return the time of a step, given its period if neither timeline slowed the other down."""
    both_ns = np.maximum(plan.host_ns + plan.device_ns - period, 0.0)
    return period + program.costs.overlap_loss_fraction * both_ns


@dataclass(slots=True)
class _Run:
    """The state of the timelines while steps go by."""

    plan: Plan
    queue_depth: int
    host: Array = field(init=False)
    device: Array = field(init=False)
    loader: Array = field(init=False)
    _queue: deque[tuple[int, Array]] = field(init=False)
    _num_queued: int = field(init=False, default=0)
    _may_fill: bool = field(init=False)

    def __post_init__(self) -> None:
        self.host = np.zeros_like(self.plan.host_ns)
        self.device = np.zeros_like(self.host)
        self.loader = np.zeros_like(self.host)
        self._queue = deque()
        # A queue that holds a whole step never starves the device while the host waits for room.
        launches = sum(point.launches for point in self.plan.points)
        self._may_fill = launches > self.queue_depth

    def settle(self) -> Array:
        """Repeat the step until its period no longer changes, and return the period."""
        end = np.zeros_like(self.host)
        period = end
        for num_steps in range(1, MAX_STEPS + 1):
            self.advance()
            before, before_period = end, period
            end = np.maximum(self.host, self.device)
            period = end - before
            if num_steps >= MIN_STEPS:
                change = np.abs(period - before_period)
                if (change <= SETTLED_FRACTION * period).all():
                    break
        return period

    def advance(self) -> None:
        """Let one step go by."""
        for point in self.plan.points:
            self._pass(point)

    def _pass(self, point: Point) -> None:
        """Let one point go by."""
        self.host += point.host_ns
        match point.kind:
            case PointKind.KERNEL | PointKind.QUEUED_COPY:
                self._launch(point)
            case PointKind.BLOCKING_COPY:
                np.maximum(self.host, self.device + point.wait_ns, out=self.host)
                self.host += point.device_ns
                np.maximum(self.device, self.host + point.wait_ns, out=self.device)
            case PointKind.SYNC:
                np.maximum(self.host, self.device + point.wait_ns, out=self.host)
            case PointKind.LOADER:
                self.loader += point.device_ns
                np.maximum(self.host, self.loader, out=self.host)
            case PointKind.HOST:
                pass

    def _launch(self, point: Point) -> None:
        # What a graph replays takes no place in the queue.
        if self._may_fill and point.launches:
            self._wait_for_room(point.launches)
        self.device += point.gap_ns
        np.maximum(self.device, self.host + point.latency_ns, out=self.device)
        if self._may_fill and point.launches == 1:
            self._queue.append((1, self.device.copy()))
        self.device += point.device_ns
        if point.more_launches_ns is not None:
            assert point.tail_ns is not None
            assert point.last_ns is not None
            self.host += point.more_launches_ns
            # Launches of equal kernels end with the first or the last of them as the bottleneck.
            np.maximum(self.device, self.host + point.tail_ns, out=self.device)
            if self._may_fill:
                self._queue.append((point.launches, self.device - point.last_ns))

    def _wait_for_room(self, launches: int) -> None:
        """Make the host wait until the queue has room; an entry leaves it when it starts."""
        self._num_queued += launches
        while self._num_queued > self.queue_depth and self._queue:
            count, start = self._queue.popleft()
            self._num_queued -= count
            np.maximum(self.host, start, out=self.host)
