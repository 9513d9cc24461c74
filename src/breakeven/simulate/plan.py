"""The points in time at which host and device wait for each other, with what each of them costs.

Arrays have one axis each for programs P, devices D and scenarios K, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class PointKind(Enum):
    """What happens at a point besides the host's own work before it."""

    HOST = auto()
    KERNEL = auto()
    BLOCKING_COPY = auto()
    QUEUED_COPY = auto()
    SYNC = auto()
    LOADER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a step.

    Args:
        event: Position of its event in the trace.
        kind: What happens.
        host_ns: The host's own time up to this point, the first launch included.
        device_ns: The device's time: kernel or copy; for a loader, time per batch.
        latency_ns: From launch to start on an idle device; minus infinity where a program has no
            such kernel.
        gap_ns: From the end of the kernel before to the start.
        wait_ns: 0 where the host waits for the device, minus infinity where it need not.
        more_launches_ns: Time of the launches after the first; None where there are none.
        tail_ns: From the last launch to the end, on an otherwise idle device.
        last_ns: Duration of the last launch's kernel.
        launches: Entries in the launch queue, the most of any program.
    """

    event: int
    kind: PointKind
    host_ns: Array
    device_ns: Array
    latency_ns: Array
    gap_ns: Array
    wait_ns: Array
    more_launches_ns: Array | None = None
    tail_ns: Array | None = None
    last_ns: Array | None = None
    launches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All points of a step for programs of equal structure, devices and scenarios.

    Args:
        points: In the order in which the host reaches them.
        host_ns: The host's own time per step.
        device_ns: Kernels and copies per step.
    """

    points: tuple[Point, ...]
    host_ns: Array
    device_ns: Array
