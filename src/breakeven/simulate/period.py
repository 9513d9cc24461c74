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
from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, Replay, settled_period

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
    run = _Run(step, queue_depth)
    period_ns = settled_period(run.advance)
    for place in zip(*np.nonzero(run.is_starved), strict=True):
        period_ns[place] = Replay(step.alone(place), queue_depth).settle()
    return period_ns


class _Run:
    """The state of the timelines while steps go by, as long as a full queue delays the host alone.

    Attributes:
        is_starved: Where it delays the device too, and the times are too short: (P, D, K).
    """

    def __init__(self, step: PricedStep[Number], queue_depth: int) -> None:
        maps = _maps(step)
        joined = _joined(maps)
        self._whole = joined[:, :, -1]
        self._state = np.zeros(self._whole.shape[1:])
        self.is_starved = np.zeros(self._whole.shape[2:], dtype=np.bool_)
        self._may_fill = step.num_launches > queue_depth
        if not self._may_fill:
            return
        self._joined = joined[:2]
        # From the host's being through with a point to the end of what the device does there.
        self._lag_ns = maps[_DEVICE, _HOST] - maps[_HOST, _HOST]
        self._passed_ns = np.cumsum(maps[_HOST, _HOST], axis=0)
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
            at, passed_ns = self._launched, self._passed_ns
            host_ns, device_ns = (self._joined + self._state[:, None]).max(axis=1)
            starts_ns = device_ns[at] - self._last_ns
            room_ns = np.concatenate((self._starts_ns, starts_ns))[self._makes_room]
            late_ns = np.full_like(host_ns, -np.inf)
            late_ns[at] = room_ns + self._more_ns - passed_ns[at]
            host_ns = np.maximum(host_ns, np.maximum.accumulate(late_ns) + passed_ns)
            self.is_starved |= (host_ns + self._lag_ns > device_ns * _ROUNDED).any(axis=0)
            state[_HOST], self._starts_ns = host_ns[-1], starts_ns
        self._state = state
        return np.maximum(state[_HOST], state[_DEVICE])


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
