"""How much time a tuning has where nobody says."""

from __future__ import annotations

import pytest

from breakeven.tune import default_budget_s


@pytest.mark.parametrize(
    ("run_s", "budget_s"),
    [(0.0, 60.0), (8.0, 60.0), (6_000.0, 60.0), (12_000.0, 120.0), (10_000_000.0, 600.0)],
)
def test_budget_is_a_part_of_the_run_within_bounds(run_s: float, budget_s: float) -> None:
    assert default_budget_s(run_s) == pytest.approx(budget_s)
