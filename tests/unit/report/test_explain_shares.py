"""The time of a step summed up by cause, phase, line and module."""

from __future__ import annotations

from functools import partial

import pytest

from breakeven.report import explain_shares
from breakeven.report.explain_shares import (
    NO_MODULE,
    cause_shares,
    line_shares,
    phase_shares,
)
from factories import explanations as made_up
from factories.terminal import shown

module_shares = partial(explain_shares.module_shares, max_depth=12)


def test_shares_add_up_to_the_step() -> None:
    attribution = made_up.launch_bound_attribution()
    for shares in (cause_shares(attribution), line_shares(attribution, None)):
        assert sum(share.time_ns for share in shares) == attribution.step_ns
        assert sum(share.fraction for share in shares) == pytest.approx(1.0)
        times = [share.time_ns for share in shares]
        assert times == sorted(times, reverse=True)
    assert sum(fraction for _, fraction in phase_shares(attribution)) == pytest.approx(1.0)
    top = [share for share in module_shares(attribution, least_fraction=0.0) if share.depth == 0]
    assert sum(share.fraction for share in top) == pytest.approx(1.0)


def test_phases_come_in_the_order_of_a_step() -> None:
    names = [name for name, _ in phase_shares(made_up.launch_bound_attribution())]
    assert names == ["data", "forward", "backward", "optimizer", "the rest"]


def test_modules_nest_below_their_parents() -> None:
    rows = module_shares(made_up.launch_bound_attribution(), least_fraction=0.0)
    assert [(row.depth, row.name) for row in rows] == [
        (0, "StreamNet"),
        (1, "encoder.cells"),
        (2, "0"),
        (2, "1"),
        (1, "head"),
        (0, NO_MODULE),
    ]
    whole, cells, first, second, head, outside = rows
    # 952, 726, 620, 106 and 166 of 1,410 µs.
    assert [round(row.fraction * 1_410) for row in rows[:5]] == [952, 726, 620, 106, 166]
    assert second.start_fraction == pytest.approx(first.start_fraction + first.fraction)
    assert head.start_fraction == pytest.approx(cells.start_fraction + cells.fraction)
    assert outside.start_fraction == pytest.approx(whole.fraction)
    assert cells.fraction == pytest.approx(first.fraction + second.fraction)
    for row in rows[:5]:
        assert row.forward_fraction + row.backward_fraction == pytest.approx(row.fraction)


def test_small_modules_are_left_out_and_deep_ones_cut() -> None:
    attribution = made_up.attribution(
        made_up.part("python", "forward", "a.b.c.d", 1, 900),
        made_up.part("python", "forward", "a.b.e", 1, 90),
        made_up.part("python", "forward", "tiny", 1, 10),
    )
    names = [row.name for row in module_shares(attribution, least_fraction=0.02)]
    assert names == ["a.b", "c.d", "e"]
    cut = module_shares(attribution, least_fraction=0.02, max_depth=2)
    assert [(row.name, round(row.fraction, 2)) for row in cut] == [("a.b", 0.99)]


def test_without_modules_there_is_no_tree() -> None:
    assert module_shares(made_up.healthy().attribution, least_fraction=0.0) == ()
    assert "by module" not in shown(made_up.healthy())
