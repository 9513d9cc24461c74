"""Machines for rent, as a table."""

from __future__ import annotations

from breakeven.money import shipped_prices
from breakeven.report import cheapest_machines


def test_cheapest_machine_of_each_gpu_and_cpu() -> None:
    prices = shipped_prices()
    cheapest = cheapest_machines(prices).machines
    kinds = [(machine.gpu, "" if machine.gpu else machine.cpu) for machine in cheapest]
    every = {(machine.gpu, "" if machine.gpu else machine.cpu) for machine in prices.machines}
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == every
    by_name = {machine.name for machine in cheapest}
    # An eighth of an L4 costs less than a whole one, but is no L4.
    assert "g2-standard-4" in by_name
    assert "g6f.large" not in by_name
    for best in cheapest:
        same = [one for one in prices.machines if (one.gpu, one.cpu) == (best.gpu, best.cpu)]
        whole = [one.usd_per_hour for one in same if one.gpu_fraction == 1]
        assert best.usd_per_hour == min(whole)
