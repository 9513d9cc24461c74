"""The time of a call on a GPU, whichever of torch's backends drives it.

If the backend has events that tell the time, the GPU's own clock counts, and a queue that was
filled before keeps the host's time to issue the call out of it. Elsewhere it is the host's clock
from one wait to the next.
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
# If a single call takes longer than the budget: such long ones hardly differ.
_FEWEST_BLOCKS = 2
# Shorter blocks are rounded by the clock of the events (0.5 us) and by what surrounds them.
_BLOCK_NS = 1_000_000
# By the host's clock a block has a wait in it, which takes some 0.1 ms on MPS.
_HOST_BLOCK_NS = 5_000_000
_MOST_CALLS = 200
# Calls that are shorter than a block are first timed together, the wait for them shared.
_FIRST_CALLS = 10
# The queue is kept full for so much longer than issuing a block took: GPUs at rest clock up
# meanwhile, hosts are interrupted.
_FILL_FACTOR, _LEAST_FILL_NS, _MOST_FILL_NS = 2.0, 100_000, 10_000_000
# What fills it, again and again: clock cycles of the GPU (0.1 ms; those of AMD's RDNA 3 count at
# 100 MHz), or a product of square matrices of that size if the backend cannot sleep.
_SLEEP_CYCLES = 150_000
_FILL_SIZE = 1024
_NUM_FILLS_TIMED = 5
_MOST_FILLS = 200
# Clocks of a GPU at rest are up to six times lower than those that it then reaches.
_MOST_REFILL = 8


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
        # There is one device of MPS, which its functions do not ask for.
        self._waited_for = () if device.type == "mps" else (device,)
        self._num_fills = self._most_fills = 1
        with self._current():
            self._make_event = self._event_maker()
            self._fill = self._filler()

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
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
        """Return how long a call takes on the device.

        Args:
            call: It is called some ten to a few thousand times.
            budget_s: Seconds that are enough, warm-up apart.
            fills_queue: Keep the host's time to issue calls out, where the backend can.
            block_ns: Length of a block of calls, between which there is no wait; by the clock that
                times them by default.
            most_s: Seconds of a call that are too many to time it.

        Raises:
            BreakevenError: It takes longer than ``most_s``.
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
                # A block is issued while the device works off what fills its queue.
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
        """Return how long a call takes about, and the host to issue it, in nanoseconds."""
        call()  # it may choose an algorithm, allocate, or compile
        once_ns, issue_ns = self._timed_by_host(call, 1)
        if once_ns > most_ns:
            raise BreakevenError(f"a call takes {format_duration(once_ns, 2)}: not timed")
        if once_ns < block_ns:
            together_ns, issue_ns = self._timed_by_host(call, _FIRST_CALLS)
            once_ns, issue_ns = together_ns / _FIRST_CALLS, issue_ns / _FIRST_CALLS
        return max(once_ns, 1.0), issue_ns

    def _current(self) -> AbstractContextManager[object]:
        """Make the device the current one inside: events and sleeps are those of that."""
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
            # A device that begins before all is issued waits for the host within the block: it has
            # clocked up since its fills were timed, or the host was interrupted.
            has_begun: bool = begin.query()
            end.record()
            self.synchronize()
            if not has_begun or self._num_fills >= self._most_fills:
                return begin.elapsed_time(end) * NS_PER_MS, issue_ns
            self._num_fills = min(2 * self._num_fills, self._most_fills)

    def _event_maker(self) -> Callable[[], Any] | None:
        """Return what makes events that tell the time; None if the backend has none.

        Those of MPS are stamped by threads of the host, in any order, and may be waited for in
        vain (pytorch/pytorch#196395). Those of XPU tell no time before oneAPI 2025.0.
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
        """Return what keeps the device busy for a moment."""
        if self._make_event is None:
            return lambda: None
        sleep: Callable[[int], object] | None = getattr(self._backend, "_sleep", None)
        if sleep is not None:
            return lambda: sleep(_SLEEP_CYCLES)
        square = torch.zeros(_FILL_SIZE, _FILL_SIZE, device=self.device)
        return lambda: torch.mm(square, square)
