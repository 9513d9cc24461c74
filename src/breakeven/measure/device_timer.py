"""The time of a call on a GPU, with any of torch's backends.

If the backend has timing events, the GPU's own clock measures the call. A queue filled in advance
hides the host's time to issue it. Otherwise the host's clock measures from one sync to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from breakeven.errors import BreakevenError
from breakeven.units import NS_PER_MS, NS_PER_S, format_duration

_LEAST_BLOCKS = 5
_MOST_BLOCKS = 40
# For a single call longer than the budget: such long calls hardly vary.
_FEWEST_BLOCKS = 2
# In shorter blocks, the events' resolution (0.5 us) and overhead around the calls distort the time.
_BLOCK_NS = 1_000_000
# A block on the host's clock contains a sync, which takes some 0.1 ms on MPS.
_HOST_BLOCK_NS = 5_000_000
_MOST_CALLS = 200
# First time several calls together if they are shorter than a block, to share their sync.
_FIRST_CALLS = 10
# Fill the queue for this multiple of a block's issue time: an idle GPU raises its clock meanwhile,
# and a host may be interrupted.
_FILL_FACTOR, _LEAST_FILL_NS, _MOST_FILL_NS = 2.0, 100_000, 10_000_000
# A fill is a sleep in GPU clock cycles (0.1 ms; AMD's RDNA 3 counts at 100 MHz). If the backend
# cannot sleep, a fill is a product of square matrices of this size.
_SLEEP_CYCLES = 150_000
_FILL_SIZE = 1024
_NUM_FILLS_TIMED = 5
_MOST_FILLS = 200
# An idle GPU's clock is up to six times slower than the clock it then reaches.
_MOST_REFILL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """The time of a call.

    Args:
        time_ns: Median over blocks of calls.
        spread: Ratio of the 90th to the 10th percentile over blocks.
        num_calls: Calls in all blocks.
        issue_ns: Median host time to issue a call.
    """

    time_ns: float
    spread: float
    num_calls: int
    issue_ns: float


class DeviceTimer:
    """Times calls on one device.

    Args:
        device: ``cuda``, ``xpu``, ``mps``, with or without a number. On ``cpu``, for tests, the
            host's clock times the calls.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._backend: Any = None if device.type == "cpu" else torch.get_device_module(device)
        # MPS has one device; its functions take no device argument.
        self._waited_for = () if device.type == "mps" else (device,)
        self._num_fills = self._most_fills = 1
        with self._current():
            self._make_event = self._event_maker()
            self._fill = self._filler()

    def synchronize(self) -> None:
        """Wait until the device has completed all issued work."""
        if self._backend is not None:
            self._backend.synchronize(*self._waited_for)

    def time_call(
        self,
        call: Callable[[], object],
        *,
        budget_s: float,
        fills_queue: bool = True,
        block_ns: float | None = None,
        most_s: float = math.inf,
    ) -> CallTime:
        """Return the time of a call on the device.

        Args:
            call: The timer calls it some ten to a few thousand times.
            budget_s: Seconds to spend, besides warm-up.
            fills_queue: Exclude the host's time to issue calls, if the backend can.
            block_ns: Length of a block of calls without a sync between them; the default depends on
                the clock that times them.
            most_s: Longest call to time, in seconds.

        Raises:
            BreakevenError: A call takes longer than ``most_s``.
        """
        has_events = self._make_event is not None and fills_queue
        if block_ns is None:
            block_ns = _BLOCK_NS if has_events else _HOST_BLOCK_NS
        with self._current():
            once_ns, issue_ns = self._warm_up(call, block_ns, most_s * NS_PER_S)
            num_calls = int(min(max(1, block_ns // once_ns), _MOST_CALLS))
            is_long = once_ns > budget_s * NS_PER_S
            least_blocks = _FEWEST_BLOCKS if is_long else _LEAST_BLOCKS
            block = self._timed_by_host
            if has_events:
                # The host issues a block while the device executes the fill.
                fill_ns = self._timed_by_host(self._fill, _NUM_FILLS_TIMED)[0] / _NUM_FILLS_TIMED
                wanted_ns = max(_FILL_FACTOR * num_calls * issue_ns, _LEAST_FILL_NS)
                num_fills = math.ceil(min(wanted_ns, _MOST_FILL_NS) / max(fill_ns, 1.0))
                self._num_fills = min(num_fills, _MOST_FILLS)
                self._most_fills = min(_MOST_REFILL * self._num_fills, _MOST_FILLS)
                block = self._timed_by_events
            until_ns = perf_counter_ns() + budget_s * NS_PER_S
            times: list[float] = []
            issues: list[float] = []
            while len(times) < least_blocks or (
                len(times) < _MOST_BLOCKS and perf_counter_ns() < until_ns
            ):
                taken_ns, issue_ns = block(call, num_calls)
                times.append(taken_ns / num_calls)
                issues.append(issue_ns / num_calls)
        low, middle, high = (float(value) for value in np.percentile(times, (10, 50, 90)))
        return CallTime(
            time_ns=middle,
            spread=high / max(low, 1e-9),
            num_calls=num_calls * len(times),
            issue_ns=float(np.median(issues)),
        )

    def _warm_up(
        self, call: Callable[[], object], block_ns: float, most_ns: float
    ) -> tuple[float, float]:
        """Return the approximate time of a call and the host's issue time, in nanoseconds."""
        call()  # it may choose an algorithm, allocate, or compile
        once_ns, issue_ns = self._timed_by_host(call, 1)
        if once_ns > most_ns:
            raise BreakevenError(f"a call takes {format_duration(once_ns, 2)}: not timed")
        if once_ns < block_ns:
            together_ns, issue_ns = self._timed_by_host(call, _FIRST_CALLS)
            once_ns, issue_ns = together_ns / _FIRST_CALLS, issue_ns / _FIRST_CALLS
        return max(once_ns, 1.0), issue_ns

    def _current(self) -> AbstractContextManager[object]:
        """Make the device current inside the context: events and sleeps use the current device."""
        choose = getattr(self._backend, "device", None)
        return nullcontext() if choose is None else choose(self.device)

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
        while True:
            begin, end = self._make_event(), self._make_event()
            for _ in range(self._num_fills):
                self._fill()
            begin.record()
            started_ns = perf_counter_ns()
            for _ in range(num_calls):
                call()
            issue_ns = perf_counter_ns() - started_ns
            # A device that begins before all calls are issued waits for the host within the block.
            # Its clock rose after the fills were timed, or the host was interrupted.
            has_begun: bool = begin.query()
            end.record()
            self.synchronize()
            if not has_begun or self._num_fills >= self._most_fills:
                return begin.elapsed_time(end) * NS_PER_MS, issue_ns
            self._num_fills = min(2 * self._num_fills, self._most_fills)

    def _event_maker(self) -> Callable[[], Any] | None:
        """Return a maker of timing events; None if the backend has none.

        Threads of the host stamp MPS events in any order, and a wait for one may never end
        (pytorch/pytorch#196395). XPU events have no time before oneAPI 2025.0.
        """
        event = None if self.device.type == "mps" else getattr(self._backend, "Event", None)
        if event is None:
            return None
        begin, end = event(enable_timing=True), event(enable_timing=True)
        try:
            begin.record()
            end.record()
            self.synchronize()
            begin.elapsed_time(end)
        except NotImplementedError:
            return None
        return lambda: event(enable_timing=True)

    def _filler(self) -> Callable[[], object]:
        """Return a function that keeps the device busy for a moment."""
        if self._make_event is None:
            return lambda: None
        sleep: Callable[[int], object] | None = getattr(self._backend, "_sleep", None)
        if sleep is not None:
            return lambda: sleep(_SLEEP_CYCLES)
        square = torch.zeros(_FILL_SIZE, _FILL_SIZE, device=self.device)
        return lambda: torch.mm(square, square)
