"""What one core of this CPU can do."""

import pytest
import torch

from breakeven.measure import measure_cpu_rates


@pytest.mark.timing
def test_rates_are_those_of_one_core_and_threads_stay_as_they_were():
    threads = torch.get_num_threads()
    rates = measure_cpu_rates()
    assert torch.get_num_threads() == threads
    assert rates.num_cores == 1
    # A core computes more than it moves, on any CPU that torch runs on.
    assert rates.flop_per_s > rates.bytes_per_s > 1e8
