"""A step that is repeated until its period settles, on all devices under all scenarios at once.

The host issues the events in order. A kernel starts a latency after its launch and a gap after the
kernel before it, on one stream. A blocking copy and a sync make the host wait until the device is
idle, and a full launch queue makes it wait too. Steps follow each other without a break.

The host, the device and the loader each finish a point at the latest of their finishing times of
the point before, each plus a known time. That is a matrix in which products add and sums take the
maximum. The matrices of all points are joined two by two, and a step is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, reduce

import numpy as np

from breakeven.simulate.cost_table import Array, Indices, RowKind
from breakeven.simulate.priced_step import IS_ON_STREAM, PricedStep

# Launches that a stream takes before the launching call blocks. CUDA documents no figure; 1,024 is
# commonly observed. It matters only if more launches are issued without a wait.
LAUNCH_QUEUE_DEPTH = 1024

# The critical path of most steps returns within this many.
NUM_RECORDED = 3

_MIN_STEPS = 3
_MAX_STEPS = 40
_SETTLED_FRACTION = 1e-6
# Rows and columns of the matrices.
_HOST, _DEVICE, _LOADER = range(3)
# Sums of the same times in another order agree within this factor; over a few steps, within the
# time below.
_ROUNDED = 1 + 1e-12
ROUNDING_NS = 1e-3


class Waited(IntEnum):
    """The event that a timeline waited for at a point."""

    FOR_NOTHING = 0
    """The host: for its own work."""

    FOR_DEVICE = 1
    """For the device to be through with the point before."""

    FOR_LOADER = 2
    FOR_ROOM = 3
    """The host: for another launch to leave the queue."""

    FOR_LAUNCH = 4
    FOR_LAST_LAUNCH = 5
    """The device: for the last of several launches of a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The times at the points of some consecutive steps, and the waits.

    Times are in nanoseconds since the host began the first of the steps.

    Args:
        host_before_ns: Time at which the host left the point before.
        launched_ns: Time at which it finished its own work, the first launch included.
        host_ns: Time at which it left the point.
        device_before_ns: Time at which the device finished all work before this point.
        start_ns: Time at which the device started this point, if it did.
        device_ns: Time at which it finished this point.
        loader_before_ns: Time at which the loader's workers finished the batch before.
        host_waited: A `Waited` of the host.
        device_waited: A `Waited` of the device.
        made_room: Position of the launch whose start made room for this one, if the host waited
            for that; -1 if it was before the recorded steps.
    """

    host_before_ns: list[float]
    launched_ns: list[float]
    host_ns: list[float]
    device_before_ns: list[float]
    start_ns: list[float]
    device_ns: list[float]
    loader_before_ns: list[float]
    host_waited: list[int]
    device_waited: list[int]
    made_room: list[int]


class RepeatedStep:
    """A step in steady state.

    Args:
        step: The step.
        queue_depth: Launches that may wait.

    Attributes:
        step: The step.
        period_ns: The time from one step to the next, without mutual slowdown of the timelines:
            (P, D, K).
    """

    def __init__(self, step: PricedStep, queue_depth: int = LAUNCH_QUEUE_DEPTH) -> None:
        self.step = step
        maps = _maps(step)
        self._joined = _joined(maps)
        self._state = np.zeros(self._joined[:, :, -1].shape[1:])
        (self._launched,) = np.nonzero(step.counts)
        # A queue that holds a whole step never starves the device while the host waits for room.
        self._may_fill = int(step.counts.sum()) > queue_depth
        if self._may_fill:
            # An entry leaves the queue at its start; it may belong to the step before.
            issued = np.cumsum(np.tile(step.counts[self._launched], 2))
            num = len(self._launched)
            left = np.searchsorted(issued, issued[num:] - queue_depth) + 1
            self._makes_room = np.minimum(left, num + np.arange(num)) - 1
            self._starts_ns = np.full((num, *step.own_ns.shape[1:]), -np.inf)
            self._more_ns, self._last_ns = _of_launches(step)
            # Time from the host's end of a point to the device's end of it.
            self._lag_ns = maps[_DEVICE, _HOST] - maps[_HOST, _HOST]
            self._wait_ns = maps[_HOST, _DEVICE, 1:]
            self._elapsed_ns = [np.cumsum(maps[side, side], axis=0) for side in (_HOST, _DEVICE)]
        self.period_ns = self._settled()

    @property
    def step_ns(self) -> Array:
        """Return the time of a step: (P, D, K)."""
        return self.step.step_ns(self.period_ns)

    @cached_property
    def moments(self) -> Moments:
        """Return the moments of the first `NUM_RECORDED` steps in steady state, as `record`."""
        return self.record(NUM_RECORDED)

    def record(self, num_steps: int) -> Moments:
        """Advance by some steps, and return the moments of each of their points.

        The step must be of one program on one device under one scenario.
        """
        begun_ns = float(self._state[_HOST].item())
        # Large times lose precision.
        self._state -= begun_ns
        if self._may_fill:
            self._starts_ns -= begun_ns
        steps = [self._moments(number) for number in range(num_steps)]
        columns = (np.concatenate(column).tolist() for column in zip(*steps, strict=True))
        return Moments(**dict(zip(Moments.__slots__, columns, strict=True)))

    def _settled(self) -> Array:
        """Repeat the step until its period no longer changes, and return the period."""
        end_ns = period_ns = self._advance()
        for num_steps in range(2, _MAX_STEPS + 1):
            before_ns, before_period_ns = end_ns, period_ns
            end_ns = self._advance()
            period_ns = end_ns - before_ns
            is_settled = abs(period_ns - before_period_ns) <= _SETTLED_FRACTION * period_ns
            if num_steps >= _MIN_STEPS and is_settled.all():
                break
        return period_ns

    def _advance(self) -> Array:
        """Advance by one step, and return the time at which both host and device finished it."""
        if self._may_fill:
            self._state = self._passed()[0][:, -1]
        else:
            self._state = (self._joined[:, :, -1] + self._state).max(axis=1)
        return np.maximum(self._state[_HOST], self._state[_DEVICE])

    def _passed(self) -> tuple[Array, Array]:
        """Return the times at which all finish each point of the next step: (S, 1 + R, P, D, K).

        Also return the times at which the queue has room for each launch. A delay of the host by
        the queue may delay the device, and that the host again, hence the iteration.
        """
        passed = (self._joined + self._state[:, None]).max(axis=1)
        if not self._may_fill:
            return passed, self._state[:0]
        at, (on_host_ns, on_device_ns) = self._launched, self._elapsed_ns
        host_ns, device_ns = passed[_HOST], passed[_DEVICE]
        earliest_ns = np.full_like(host_ns, -np.inf)
        while True:
            starts_ns = device_ns[1:][at] - self._last_ns[at]
            room_ns = np.concatenate((self._starts_ns, starts_ns))[self._makes_room]
            earliest_ns[1:] = device_ns[:-1] + self._wait_ns
            earliest_ns[1:][at] = room_ns + self._more_ns[at]
            host_ns = np.maximum(host_ns, _running(earliest_ns, on_host_ns))
            later_ns = _running(host_ns + self._lag_ns, on_device_ns)
            if (later_ns <= device_ns * _ROUNDED).all():
                break
            device_ns = np.maximum(device_ns, later_ns)
        self._starts_ns = starts_ns
        passed[_HOST], passed[_DEVICE] = host_ns, device_ns
        return passed, room_ns

    def _moments(self, number: int) -> tuple[Array | Indices, ...]:
        """Advance by one step, the ``number``th of some, and return the columns of `Moments`."""
        step, num_points = self.step, len(self.step.kinds)
        passed, room_ns = self._passed()
        self._state = passed[:, -1]
        # There is one program, one device and one scenario.
        before, after = passed[:, :-1, 0, 0, 0], passed[:, 1:, 0, 0, 0]
        more_ns, last_ns = (times.ravel() for times in _of_launches(step))
        own_ns, is_free, kinds = step.own_ns.ravel(), step.is_free.ravel(), step.kinds
        is_copy = kinds == RowKind.BLOCKING_COPY
        issued_ns = before[_HOST] + step.before_ns.ravel()

        host_waited = np.full(num_points, Waited.FOR_NOTHING)
        waits = (is_copy | (kinds == RowKind.SYNC)) & ~is_free
        host_waited[waits & (before[_DEVICE] > issued_ns)] = Waited.FOR_DEVICE
        loads = kinds == RowKind.LOADER
        if loads.any():
            host_waited[loads & (after[_LOADER] > issued_ns)] = Waited.FOR_LOADER
        made_room = np.full(num_points, -1)
        if self._may_fill:
            full = room_ns.ravel() > issued_ns[self._launched]
            of_step = number - (self._makes_room < len(self._launched))
            launch = self._launched[self._makes_room % len(self._launched)]
            launch = np.where(of_step < 0, -1, of_step * num_points + launch)
            host_waited[self._launched[full]] = Waited.FOR_ROOM
            made_room[self._launched[full]] = launch[full]

        launched_ns = issued_ns.copy()
        launched_ns[self._launched] = (after[_HOST] - more_ns)[self._launched]
        by_launch_ns = np.where(is_free, -np.inf, launched_ns + step.latency_ns.item())
        by_device_ns = before[_DEVICE] + np.where(is_free, 0.0, step.gap_ns.item())
        start_ns = np.where(is_copy, after[_HOST] - own_ns, np.maximum(by_launch_ns, by_device_ns))
        device_waited = np.where(by_launch_ns > by_device_ns, Waited.FOR_LAUNCH, Waited.FOR_DEVICE)
        is_last = by_launch_ns + more_ns + last_ns > start_ns + own_ns
        device_waited[is_last] = Waited.FOR_LAST_LAUNCH
        device_waited[~IS_ON_STREAM[kinds]] = Waited.FOR_NOTHING
        return (
            before[_HOST], launched_ns, after[_HOST], before[_DEVICE], start_ns, after[_DEVICE],
            before[-1], host_waited, device_waited, made_room,
        )  # fmt: skip


def _of_launches(step: PricedStep) -> tuple[Array, Array]:
    """Return for each point the host's time after the first launch, and the last one's time."""
    more_ns, last_ns = np.zeros_like(step.own_ns), step.own_ns.copy()
    more_ns[step.many], last_ns[step.many] = step.more_ns, step.last_ns
    return more_ns, last_ns


def _running(earliest_ns: Array, elapsed_ns: Array) -> Array:
    """Return the end of each point, given its earliest end and the elapsed time up to it."""
    return np.maximum.accumulate(earliest_ns - elapsed_ns) + elapsed_ns


def _maps(step: PricedStep) -> Array:
    """Return the matrices of the lead before the first point and of all points: (S, S, 1 + R, ...).

    The first axis is the delayed timeline, the second the one that delays it.
    """
    kinds, own_ns = step.kinds, step.own_ns
    size = 3 if (kinds == RowKind.LOADER).any() else 2
    maps = np.full((size, size, 1 + len(kinds), *own_ns.shape[1:]), -np.inf)
    maps[range(1, size), range(1, size)] = 0.0
    maps[_HOST, _HOST, 0] = step.lead_ns
    points = maps[:, :, 1:]
    points[_HOST, _HOST] = step.before_ns
    (at,) = np.nonzero(IS_ON_STREAM[kinds])
    points[_DEVICE, _HOST, at] = points[_HOST, _HOST, at] + step.latency_ns + own_ns[at]
    points[_DEVICE, _DEVICE, at] = step.gap_ns + own_ns[at]
    # Launches of equal kernels end with the first or the last one as the bottleneck.
    late_ns = np.maximum(0.0, step.more_ns + step.last_ns - own_ns[step.many])
    points[_DEVICE, _HOST, step.many] += late_ns
    points[_HOST, _HOST, step.many] += step.more_ns
    (at,) = np.nonzero((kinds == RowKind.SYNC) | (kinds == RowKind.BLOCKING_COPY))
    points[_HOST, _HOST, at] += own_ns[at]
    points[_HOST, _DEVICE, at] = own_ns[at]
    (at,) = np.nonzero(kinds == RowKind.BLOCKING_COPY)
    points[_DEVICE, _HOST, at] = points[_HOST, _HOST, at]
    points[_DEVICE, _DEVICE, at] = own_ns[at]
    at, program, _, scenario = np.nonzero(step.is_free)
    points[_HOST, _DEVICE, at, program, :, scenario] = -np.inf
    points[_DEVICE, _HOST, at, program, :, scenario] = -np.inf
    points[_DEVICE, _DEVICE, at, program, :, scenario] = 0.0
    (at,) = np.nonzero(kinds == RowKind.LOADER)
    for delayed in (_HOST, _LOADER) if len(at) else ():
        points[delayed, _LOADER, at] = own_ns[at]
    return maps


def _joined(maps: Array) -> Array:
    """Return for each point the joined matrix of all points up to it."""
    if maps.shape[2] == 1:
        return maps
    joined = np.empty_like(maps)
    joined[:, :, :1] = maps[:, :, :1]
    pairs = _joined(_after(maps[:, :, 1::2], maps[:, :, :-1:2]))
    joined[:, :, 1::2] = pairs
    joined[:, :, 2::2] = _after(maps[:, :, 2::2], pairs[:, :, : (maps.shape[2] - 1) // 2])
    return joined


def _after(second: Array, first: Array) -> Array:
    """Return the joined matrices of ``first`` followed by ``second``."""
    products = (second[:, k, None] + first[None, k] for k in range(len(first)))
    return reduce(np.maximum, products)
