"""What one core of this CPU does, for predicting CPUs that are absent.

All of it by processor time: other processes take no part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from breakeven.measure.one_thread import one_thread
from breakeven.simulate import CpuRates
from breakeven.timing import Estimate, Source

# A product large enough to reach the core's rate, and copies that fit no cache.
_WIDTH = 1024
_COPIED_BYTES = 128 * 2**20
_NUM_ROUNDS = 7
_LEAST_CALLS = 2


def measure_cpu_rates() -> CpuRates:
    """Return the rates of one core."""
    with one_thread():
        left, right = torch.rand(2, _WIDTH, _WIDTH)
        result = torch.empty_like(left)
        product_ns = _shortest_ns(lambda: torch.mm(left, right, out=result))
        source = torch.rand(_COPIED_BYTES // 4)
        target = torch.empty_like(source)
        copy_ns = _shortest_ns(lambda: target.copy_(source))
    return CpuRates(
        num_cores=1,
        flop_per_s=2 * _WIDTH**3 / product_ns * 1e9,
        bytes_per_s=2 * _COPIED_BYTES / copy_ns * 1e9,
    )


def time_on_one_core(step: Callable[[], object], *, budget_s: float) -> Estimate:
    """Return the shortest time of a step on one core; the first call only warms up.

    Args:
        step: Does one step.
        budget_s: Seconds of steps that are enough, and of which there is one at least.
    """
    times: list[int] = []
    with one_thread():
        end = time.monotonic() + budget_s
        while time.monotonic() < end or len(times) < _LEAST_CALLS:
            times.append(_process_ns(step))
    shortest_ns = float(min(times[1:]))
    return Estimate(
        value_ns=shortest_ns, low_ns=shortest_ns, high_ns=shortest_ns, source=Source.MEASURED
    )


def _shortest_ns(call: Callable[[], object]) -> float:
    return min(_process_ns(call) for _ in range(_NUM_ROUNDS))


def _process_ns(call: Callable[[], object]) -> int:
    start = time.process_time_ns()
    call()
    return time.process_time_ns() - start
