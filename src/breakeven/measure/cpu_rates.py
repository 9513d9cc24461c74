"""What one core of this CPU computes and moves per second, for predicting CPUs that are absent."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from breakeven.simulate import CpuRates

# A product large enough to reach the core's rate, and copies that fit no cache.
_WIDTH = 1024
_COPIED_BYTES = 128 * 2**20
_NUM_ROUNDS = 7


def measure_cpu_rates() -> CpuRates:
    """Return the rates of one core, by processor time: other processes take no part of it.

    torch uses one thread meanwhile, and as many as before afterwards.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.rand(2, _WIDTH, _WIDTH)
        result = torch.empty_like(left)
        product_ns = _shortest_ns(lambda: torch.mm(left, right, out=result))
        source = torch.rand(_COPIED_BYTES // 4)
        target = torch.empty_like(source)
        copy_ns = _shortest_ns(lambda: target.copy_(source))
    finally:
        torch.set_num_threads(threads)
    return CpuRates(
        num_cores=1,
        flop_per_s=2 * _WIDTH**3 / product_ns * 1e9,
        bytes_per_s=2 * _COPIED_BYTES / copy_ns * 1e9,
    )


def _shortest_ns(call: Callable[[], object]) -> float:
    times: list[int] = []
    for _ in range(_NUM_ROUNDS):
        start = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - start)
    return min(times)
