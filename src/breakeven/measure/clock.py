"""The clock of this machine."""

from __future__ import annotations

from time import perf_counter_ns

import torch

from breakeven.measure.own_time import own_time_ns


class HostClock:
    """The time of the thread that asks, for steps on the CPU: there is no device to wait for.

    It stands still while other work keeps the thread from running, unless ``is_wall``.
    """

    def __init__(self) -> None:
        self.is_wall = False

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        return perf_counter_ns() if self.is_wall else own_time_ns()

    def synchronize(self) -> None:
        """Return at once: a CPU operator is done when its call returns."""


class GpuClock:
    """The host's monotonic clock, for steps on a GPU.

    Args:
        kind: torch's type of it: ``cuda``, ``xpu`` or ``mps``.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self._backend = torch.get_device_module(kind)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        return perf_counter_ns()

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        self._backend.synchronize()
