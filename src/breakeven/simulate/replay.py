"""One step on two timelines, point by point: able to tell what happened when.

The same rules as in `period`, which goes through all points, devices and scenarios at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.simulate.cost_table import CostTable
from breakeven.simulate.priced_step import (
    COPY,
    KERNEL,
    LAUNCHED,
    LOADER,
    ON_DEVICE,
    RUN_IN_ORDER,
    SYNC,
    Number,
    PricedStep,
    price,
)
from breakeven.simulate.program import Scenario

# Launches that a stream takes before the launching call blocks. CUDA documents no figure; 1,024 is
# what is commonly observed. It matters only where more than that are issued without a wait.
LAUNCH_QUEUE_DEPTH = 1024

_MIN_STEPS = 3
_MAX_STEPS = 40
_SETTLED_FRACTION = 1e-6

NO_WAIT, UNLOGGED = -1, -2


def settled_period(advance: Callable[[], Number]) -> Number:
    """Repeat a step until its period no longer changes, and return the period.

    Args:
        advance: Lets one step go by, and returns when host and device were through with it.
    """
    end_ns = advance()
    period_ns = end_ns
    for num_steps in range(2, _MAX_STEPS + 1):
        before_ns, before_period_ns = end_ns, period_ns
        end_ns = advance()
        period_ns = end_ns - before_ns
        change_ns = abs(period_ns - before_period_ns)
        if num_steps >= _MIN_STEPS and np.all(change_ns <= _SETTLED_FRACTION * period_ns):
            break
    return period_ns


class LoggedPoint(NamedTuple):
    """What a replay saw at one point; times since the start of the replay.

    Args:
        host_before_ns: When the host came from the point before.
        issued_ns: When it was through with its own work before this point.
        host_ns: When it went on.
        device_before_ns: When the device was through with all before this point.
        start_ns: When the device started on this point; where it did.
        device_ns: When the device was through with this point.
        loader_before_ns: When the loader's workers were through with the batch before.
        loader_ns: When they were through with this one.
        blocker: Position in the log of the launch whose start made room for this one; `NO_WAIT`
            where there was room, `UNLOGGED` where that launch went by before the log began.
    """

    host_before_ns: float
    issued_ns: float
    host_ns: float
    device_before_ns: float
    start_ns: float
    device_ns: float
    loader_before_ns: float
    loader_ns: float
    blocker: int


class Replay:
    """Repeats a step.

    Args:
        step: The step.
        queue_depth: Launches that may wait.
    """

    def __init__(self, step: PricedStep[float], queue_depth: int = LAUNCH_QUEUE_DEPTH) -> None:
        self._step = step
        # A queue that holds a whole step never starves the device while the host waits for room.
        self._may_fill = step.num_launches > queue_depth
        self._room = queue_depth
        self._queue: deque[tuple[int, float, int]] = deque()
        self.host_ns = 0.0
        self.device_ns = 0.0
        self.loader_ns = 0.0
        self._log: list[LoggedPoint] | None = None

    def settle(self) -> float:
        """Repeat the step until its period no longer changes, and return the period."""
        return settled_period(self.advance)

    def advance(self) -> float:
        """Let one step go by; return when host and device were through with it."""
        host, device, loader = self.host_ns + self._step.lead_ns, self.device_ns, self.loader_ns
        latency_ns, gap_ns = self._step.latency_ns, self._step.gap_ns
        may_fill, queue, log = self._may_fill, self._queue, self._log
        room, blocker, start = self._room, NO_WAIT, 0.0
        for kind, before_ns, own_ns, launches in self._step.points:
            host_before, device_before, loader_before = host, device, loader
            host += before_ns
            issued = host
            if may_fill and kind in LAUNCHED:
                room -= 1 if launches is None else launches.count
                # An entry leaves the queue when it starts.
                while room < 0 and queue:
                    count, started, entry = queue.popleft()
                    room += count
                    if started > host:
                        host, blocker = started, entry
            if kind in RUN_IN_ORDER:
                device += gap_ns
                if host + latency_ns > device:
                    device = host + latency_ns
                start = device
                device += own_ns
                if may_fill and kind == KERNEL:
                    queue.append((1, start, len(log) if log is not None else UNLOGGED))
            elif kind == SYNC:
                if device > host:
                    host = device
                host += own_ns
            elif kind == COPY:
                if device > host:
                    host = device
                start = host
                host += own_ns
                device = host
            elif kind == LOADER:
                loader += own_ns
                if loader > host:
                    host = loader
            elif launches is not None:
                start = max(device + launches.gap_ns, host + launches.latency_ns)
                host += launches.more_ns
                # Launches of equal kernels end with the first or the last as the bottleneck.
                device = max(start + own_ns, host + launches.tail_ns)
                if may_fill:
                    entry = len(log) if log is not None else UNLOGGED
                    queue.append((launches.count, device - launches.last_ns, entry))
            if log is not None:
                log.append(
                    LoggedPoint(
                        host_before, issued, host, device_before, start, device,
                        loader_before, loader, blocker,
                    )
                )  # fmt: skip
                blocker = NO_WAIT
        self.host_ns, self.device_ns, self.loader_ns, self._room = host, device, loader, room
        return host if host > device else device

    def logged(self, num_steps: int) -> list[LoggedPoint]:
        """Let steps go by, and return what happened at each of their points."""
        self._log = []
        for _ in range(num_steps):
            self.advance()
        log, self._log = self._log, None
        return log


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one event does on one of the timelines.

    Args:
        event: Position of the event in the trace.
        is_on_device: On which of the two.
        start_ns: Since the start of the step on the host.
        end_ns: End; on the host it includes waiting for the device.
    """

    event: int
    is_on_device: bool
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step in steady state.

    Args:
        step_ns: From one step to the next.
        host_busy_ns: The host's own work within it.
        device_busy_ns: Kernels and copies within it.
        spans: What happens when, in the order of the events.
    """

    step_ns: float
    host_busy_ns: float
    device_busy_ns: float
    spans: tuple[Span, ...]


def timeline_of(
    table: CostTable, scenario: Scenario, *, queue_depth: int = LAUNCH_QUEUE_DEPTH
) -> Timeline:
    """Return one step of a cost table in detail."""
    step = price(table, scenario, is_merged=False)
    replay = Replay(step, queue_depth)
    period_ns = replay.settle()
    start_ns = replay.host_ns
    log = replay.logged(1)
    spans: list[Span] = []
    for row, point, logged in zip(step.rows.tolist(), step.points, log, strict=True):
        event = int(table.rows.event[row])
        if logged.host_ns > logged.host_before_ns:
            spans.append(
                Span(
                    event=event,
                    is_on_device=False,
                    start_ns=logged.host_before_ns - start_ns,
                    end_ns=logged.host_ns - start_ns,
                )
            )
        if point[0] in ON_DEVICE:
            spans.append(
                Span(
                    event=event,
                    is_on_device=True,
                    start_ns=logged.start_ns - start_ns,
                    end_ns=logged.device_ns - start_ns,
                )
            )
    return Timeline(
        step_ns=step.step_ns(period_ns),
        host_busy_ns=step.host_ns,
        device_busy_ns=step.device_ns,
        spans=tuple(spans),
    )
