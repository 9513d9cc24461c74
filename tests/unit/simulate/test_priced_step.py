"""The spread of a step's kernels against errors drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.cost import KernelTimes
from breakeven.simulate.priced_step import spread_in_step


def spread_of(
    time_ns: np.ndarray, log_sigma: np.ndarray, shared: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Return the spread of kernels on one device."""
    times = KernelTimes(
        time_ns=time_ns[:, None],
        log_sigma=log_sigma[:, None],
        shared_log_sigma=shared[:, None],
        is_memory_bound=np.zeros((len(time_ns), 1), dtype=np.bool_),
        is_latency_bound=np.zeros((len(time_ns), 1), dtype=np.bool_),
        floor_ns=np.zeros((len(time_ns), 1)),
        replay_ns=np.zeros((len(time_ns), 1)),
    )
    return spread_in_step(times, counts)[:, 0]


def drawn_sigma(
    time_ns: np.ndarray, log_sigma: np.ndarray, shared_log_sigma: np.ndarray, counts: np.ndarray
) -> float:
    """Return the spread of a sum of kernels whose errors are drawn: one shared, one for each."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(20_000, 1))
    own = rng.normal(size=(20_000, len(time_ns)))
    own_log_sigma = np.sqrt(log_sigma**2 - shared_log_sigma**2)
    errors = np.exp(shared * shared_log_sigma + own * own_log_sigma)
    return float(np.log(errors @ (time_ns * counts)).std())


@pytest.mark.parametrize("num_kernels", [1, 3, 40])
def test_spread_of_the_sum_is_that_of_drawn_errors(num_kernels: int) -> None:
    rng = np.random.default_rng(num_kernels)
    time_ns = rng.uniform(10, 100, num_kernels)
    counts = rng.integers(1, 20, num_kernels)
    log_sigma = rng.uniform(0.15, 0.3, num_kernels)
    shared = log_sigma * 0.6

    spread = spread_of(time_ns, log_sigma, shared, counts)

    predicted = float((time_ns * counts * spread).sum() / (time_ns * counts).sum())
    assert predicted == pytest.approx(drawn_sigma(time_ns, log_sigma, shared, counts), rel=0.05)
    assert (spread <= log_sigma + 1e-12).all()
    assert (spread >= shared).all()


def test_equal_kernels_do_not_average_out() -> None:
    one, two = (
        spread_of(*(np.array([value]) for value in (5.0, 0.3, 0.1)), np.array([count])).item()
        for count in (1, 1000)
    )
    assert one == two == pytest.approx(0.3)


def test_certain_kernels_stay_certain() -> None:
    zeros = np.zeros(2)
    assert (spread_of(np.ones(2), zeros, zeros, np.array([1, 1])) == 0.0).all()
