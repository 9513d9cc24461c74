"""The period of a repeated step, from all of its points at once.

When host, device and loader are through with a point is the latest of when they were through with
the one before, plus times that are known: a matrix, where a product adds and a sum takes the
larger. The matrices of all points are joined two by two, and a step is one of them.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from breakeven.simulate.cost_table import Array
from breakeven.simulate.priced_step import (
    COPY,
    KERNEL,
    LOADER,
    REPLAYED,
    SYNC,
    Number,
    PricedStep,
)
from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, settled_period

# Rows and columns of the matrices.
_HOST, _DEVICE, _LOADER = range(3)
# Sums of the same times in another order are equal to this factor.
_ROUNDED = 1 + 1e-12


def period_of(step: PricedStep[Number], queue_depth: int = LAUNCH_QUEUE_DEPTH) -> Array:
    """Return the time from one step to the next in steady state: (P, D, K).

    Args:
        step: The step.
        queue_depth: Launches that may wait.
    """
    return settled_period(_Run(step, queue_depth).advance)


class _Run:
    """The state of the timelines while steps go by."""

    def __init__(self, step: PricedStep[Number], queue_depth: int) -> None:
        maps = _maps(step)
        joined = _joined(maps)
        self._whole = joined[:, :, -1]
        self._state = np.zeros(self._whole.shape[1:])
        self._may_fill = step.num_launches > queue_depth
        if not self._may_fill:
            return
        self._joined = joined[:2]
        # From the host's being through with a point to the end of what the device does there.
        self._lag_ns = maps[_DEVICE, _HOST] - maps[_HOST, _HOST]
        self._wait_ns = maps[_HOST, _DEVICE, 1:]
        self._passed_ns = [np.cumsum(maps[side, side], axis=0) for side in (_HOST, _DEVICE)]
        counts, more_ns, last_ns = 1 * (step.kinds == KERNEL), 0 * step.own_ns, step.own_ns.copy()
        counts[step.special], more_ns[step.special] = step.counts, step.special_ns[0]
        last_ns[step.special] = step.special_ns[2]
        (launched,) = np.nonzero(counts)
        self._launched = launched + 1
        self._last_ns, self._more_ns = last_ns[launched], more_ns[launched]
        # An entry leaves the queue when it starts; it may be one of the step before.
        issued = np.cumsum(np.tile(counts[launched], 2))
        num = len(launched)
        left = np.searchsorted(issued, issued[num:] - queue_depth) + 1
        self._makes_room = np.minimum(left, num + np.arange(num)) - 1
        self._starts_ns = np.full_like(self._last_ns, -np.inf)

    def advance(self) -> Array:
        """Let one step go by; return when host and device were through with it."""
        state = (self._whole + self._state).max(axis=1)
        if self._may_fill:
            host_ns, device_ns = (self._joined + self._state[:, None]).max(axis=1)
            state[_HOST], state[_DEVICE] = self._held_up(host_ns, device_ns)
        self._state = state
        return np.maximum(state[_HOST], state[_DEVICE])

    def _held_up(self, host_ns: Array, device_ns: Array) -> tuple[Array, Array]:
        """Return when both are through with a step, where launches wait for room in the queue.

        What holds up the host may hold up the device, and that the host again.

        Args:
            host_ns: When the host is through with each point if nothing waits: (1 + R, P, D, K).
            device_ns: The same of the device.
        """
        at, (of_host, of_device) = self._launched, self._passed_ns
        earliest_ns = np.full_like(host_ns, -np.inf)
        while True:
            starts_ns = device_ns[at] - self._last_ns
            room_ns = np.concatenate((self._starts_ns, starts_ns))[self._makes_room]
            earliest_ns[1:] = device_ns[:-1] + self._wait_ns
            earliest_ns[at] = room_ns + self._more_ns
            host_ns = np.maximum(host_ns, _running(earliest_ns, of_host))
            later_ns = _running(host_ns + self._lag_ns, of_device)
            if (later_ns <= device_ns * _ROUNDED).all():
                self._starts_ns = starts_ns
                return host_ns[-1], device_ns[-1]
            device_ns = np.maximum(device_ns, later_ns)


def _running(earliest_ns: Array, passed_ns: Array) -> Array:
    """Return when each point is over, given when it is at the earliest and what passes up to it."""
    return np.maximum.accumulate(earliest_ns - passed_ns) + passed_ns


def _maps(step: PricedStep[Number]) -> Array:
    """Return the matrices of what precedes the first point and of all points: (S, S, 1 + R, ...).

    The first axis is what is delayed, the second is by what.
    """
    kinds, own_ns = step.kinds, step.own_ns
    size = 3 if (kinds == LOADER).any() else 2
    maps = np.full((size, size, 1 + len(kinds), *own_ns.shape[1:]), -np.inf)
    maps[range(1, size), range(1, size)] = 0.0
    maps[_HOST, _HOST, 0] = step.lead_ns
    points = maps[:, :, 1:]
    points[_HOST, _HOST] = step.before_ns
    (at,) = np.nonzero((kinds == KERNEL) | (kinds == REPLAYED))
    points[_DEVICE, _HOST, at] = points[_HOST, _HOST, at] + step.latency_ns + own_ns[at]
    points[_DEVICE, _DEVICE, at] = step.gap_ns + own_ns[at]
    at, (more_ns, tail_ns, _, latency_ns, gap_ns) = step.special, step.special_ns
    # Launches of equal kernels end with the first or the last of them as the bottleneck.
    ends_ns = np.maximum(latency_ns + own_ns[at], more_ns + tail_ns)
    points[_DEVICE, _HOST, at] = points[_HOST, _HOST, at] + ends_ns
    points[_DEVICE, _DEVICE, at] = gap_ns + own_ns[at]
    points[_HOST, _HOST, at] += more_ns
    for kind, wait_ns in ((SYNC, step.sync_wait_ns), (COPY, step.copy_wait_ns)):
        (at,) = np.nonzero(kinds == kind)
        points[_HOST, _HOST, at] += own_ns[at]
        points[_HOST, _DEVICE, at] = wait_ns + own_ns[at]
        if kind == COPY:
            points[_DEVICE, _HOST, at] = points[_HOST, _HOST, at] + wait_ns
            points[_DEVICE, _DEVICE, at] = np.maximum(0.0, own_ns[at] + 2 * wait_ns)
    (at,) = np.nonzero(kinds == LOADER)
    for delayed in (_HOST, _LOADER) if len(at) else ():
        points[delayed, _LOADER, at] = own_ns[at]
    return maps


def _joined(maps: Array) -> Array:
    """Return for each point the matrix of all up to it."""
    if maps.shape[2] == 1:
        return maps
    joined = np.empty_like(maps)
    joined[:, :, :1] = maps[:, :, :1]
    pairs = _joined(_after(maps[:, :, 1::2], maps[:, :, :-1:2]))
    joined[:, :, 1::2] = pairs
    joined[:, :, 2::2] = _after(maps[:, :, 2::2], pairs[:, :, : (maps.shape[2] - 1) // 2])
    return joined


def _after(second: Array, first: Array) -> Array:
    """Return the matrices of what follows ``first``, with it."""
    products = (second[:, k, None] + first[None, k] for k in range(len(first)))
    return reduce(np.maximum, products)
