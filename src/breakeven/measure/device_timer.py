"""The time of a call on a GPU, whichever of torch's backends drives it.

Where the backend has events that tell the time, the GPU's own clock counts, and a queue that was
filled before keeps the host's time to issue the call out of it. Elsewhere it is the host's clock
from one wait to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from breakeven.units import NS_PER_MS, NS_PER_S

_LEAST_BLOCKS = 5
_MOST_BLOCKS = 40
# Shorter blocks are rounded by the clock of the events (0.5 us) and by what surrounds them.
_BLOCK_NS = 1_000_000
_MOST_CALLS = 200
# How long the queue is kept full, in clock cycles of the GPU: some 2 ms, in which the host issues
# a block of calls.
_SLEEP_CYCLES = 4_000_000
_FILL_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """How long a call took.

    Args:
        time_ns: Median over blocks of calls.
        spread: 90th over tenth percentile of them.
        num_calls: Calls in all blocks.
        issue_ns: Host time to issue a call, the median.
    """

    time_ns: float
    spread: float
    num_calls: int
    issue_ns: float


class DeviceTimer:
    """Times calls on one device.

    Args:
        device: ``cuda``, ``xpu``, ``mps``, with or without a number; on ``cpu`` calls are timed by
            the host's clock, for tests.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._backend: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._make_event = _event_maker(device.type)
        self._fill = self._filler()

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        if self._backend is not None:
            self._backend.synchronize()

    def time_call(
        self, call: Callable[[], object], *, budget_s: float, fills_queue: bool = True
    ) -> CallTime:
        """Return how long a call takes on the device.

        Args:
            call: It is called some ten to a few thousand times.
            budget_s: Seconds that are enough, warm-up apart.
            fills_queue: Keep the host's time to issue calls out, where the backend can.
        """
        # Twice: a first call may choose an algorithm, allocate, or compile.
        call()
        call()
        self.synchronize()
        started_ns = perf_counter_ns()
        call()
        self.synchronize()
        once_ns = max(perf_counter_ns() - started_ns, 1)
        num_calls = int(min(max(1, _BLOCK_NS // once_ns), _MOST_CALLS))
        block = self._timed_by_events if self._make_event and fills_queue else self._timed_by_host
        until_ns = perf_counter_ns() + budget_s * NS_PER_S
        times: list[float] = []
        issues: list[float] = []
        while len(times) < _LEAST_BLOCKS or (
            len(times) < _MOST_BLOCKS and perf_counter_ns() < until_ns
        ):
            block_ns, issue_ns = block(call, num_calls)
            times.append(block_ns / num_calls)
            issues.append(issue_ns / num_calls)
        low, middle, high = (float(value) for value in np.percentile(times, (10, 50, 90)))
        return CallTime(
            time_ns=middle,
            spread=high / max(low, 1e-9),
            num_calls=num_calls * len(times),
            issue_ns=float(np.median(issues)),
        )

    def _timed_by_host(self, call: Callable[[], object], num_calls: int) -> tuple[float, float]:
        self.synchronize()
        started_ns = perf_counter_ns()
        for _ in range(num_calls):
            call()
        issued_ns = perf_counter_ns()
        self.synchronize()
        return perf_counter_ns() - started_ns, issued_ns - started_ns

    def _timed_by_events(self, call: Callable[[], object], num_calls: int) -> tuple[float, float]:
        assert self._make_event is not None
        begin, end = self._make_event(), self._make_event()
        self._fill()
        begin.record()
        started_ns = perf_counter_ns()
        for _ in range(num_calls):
            call()
        issue_ns = perf_counter_ns() - started_ns
        end.record()
        self.synchronize()
        return begin.elapsed_time(end) * NS_PER_MS, issue_ns

    def _filler(self) -> Callable[[], object]:
        """Return what keeps the device busy while a block of calls is issued."""
        if self._make_event is None:
            return lambda: None
        sleep: Callable[[int], object] | None = getattr(self._backend, "_sleep", None)
        if sleep is not None:
            return lambda: sleep(_SLEEP_CYCLES)
        square = torch.zeros(_FILL_SIZE, _FILL_SIZE, device=self.device)
        return lambda: torch.mm(square, square)


def _event_maker(kind: str) -> Callable[[], Any] | None:
    """Return what makes events that tell the time; None where the backend has none."""
    if kind == "cpu":
        return None
    backend: Any = torch.get_device_module(kind)
    event = getattr(backend, "Event", None) or getattr(
        getattr(backend, "event", None), "Event", None
    )
    return None if event is None else lambda: event(enable_timing=True)
