from __future__ import annotations

from collections.abc import Container, Sequence
from math import exp, inf, log, sqrt
from typing import Any

import pytest

from breakeven.timing import (
    RunRatio,
    Speedup,
    TurnKind,
    compare_pairs,
    compare_runs,
    compare_turns,
)
from breakeven.timing.speedup import LEAST_SPREAD, _student_quantile


def compare(
    baseline_ns: Sequence[float], candidate_ns: Sequence[float], *args: Any, **options: Any
) -> Speedup:
    """Compare runs of which one followed the other."""
    pairs = [compare_runs(*pair) for pair in zip(baseline_ns, candidate_ns, strict=True)]
    return compare_pairs(pairs, *args, **options)


@pytest.mark.parametrize(
    ("degrees", "tail", "expected"),
    [
        # From the table of a textbook.
        (1, 0.025, 12.706),
        (2, 0.025, 4.303),
        (3, 0.005, 5.841),
        (4, 0.025, 2.776),
        (7, 0.1, 1.415),
        (9, 0.005, 3.250),
        (30, 0.025, 2.042),
    ],
)
def test_quantiles_are_those_of_students_distribution(
    degrees: int, tail: float, expected: float
) -> None:
    assert _student_quantile(degrees, tail) == pytest.approx(expected, abs=6e-4)


def test_interval_worked_by_hand() -> None:
    candidate = (100.0, 100.0, 100.0)
    baseline = tuple(100.0 * exp(ratio) for ratio in (0.55, 0.6, 0.65))
    found = compare(baseline, candidate)
    # Mean 0.6, standard deviation 0.05, two degrees of freedom.
    half = 4.30265 * 0.05 / sqrt(3)
    assert log(found.value) == pytest.approx(0.6)
    assert log(found.low) == pytest.approx(0.6 - half, abs=1e-5)
    # The noisy machine's spread, 0.18, bounds it from above: 1.96 * 0.18 < 4.30 * 0.15.
    wide = compare([100.0 * exp(ratio) for ratio in (0.45, 0.6, 0.75)], candidate, confidence=0.95)
    assert log(wide.high) == pytest.approx(0.6 + 1.95996 * 0.18 / sqrt(3), abs=1e-5)
    assert found.num_pairs == 3


def test_a_few_pairs_that_agree_perfectly_are_not_believed() -> None:
    found = compare([120.0] * 4, [100.0] * 4)
    half = 3.18245 * LEAST_SPREAD / 2
    assert log(found.value / found.low) == pytest.approx(half, abs=1e-5)


def test_one_pair_says_little_and_none_nothing() -> None:
    one = compare([120.0], [100.0])
    assert one.low < 1.0 < 1.6 < one.high
    assert compare([], []) == Speedup(value=1.0, low=0.0, high=inf, num_pairs=0)


def test_steady_drift_cancels_between_a_pair_and_the_next() -> None:
    # A B B A, each run 4 % slower than the one before, nothing else between A and B.
    a1, b1, b2, a2 = (100.0 * 1.04**run for run in range(4))
    assert compare([a1, a2], [b1, b2]).value == pytest.approx(1.0)
    # Of three pairs a third of one run's drift is left.
    a3, b3 = 100.0 * 1.04**4, 100.0 * 1.04**5
    assert compare([a1, a2, a3], [b1, b2, b3]).value == pytest.approx(1.04 ** (-1 / 3))


@pytest.mark.parametrize("held_up", range(5))
@pytest.mark.parametrize("is_candidate", [True, False])
def test_one_hiccup_among_several_pairs_changes_nothing(held_up: int, is_candidate: bool) -> None:
    ratios = (1.30, 1.31, 1.29, 1.305, 1.30)
    baseline, candidate = [100.0 * ratio for ratio in ratios], [100.0] * 5
    quiet = compare(baseline, candidate)
    (candidate if is_candidate else baseline)[held_up] *= 2.5
    found = compare(baseline, candidate)
    assert found.value == pytest.approx(quiet.value, rel=0.01)
    assert found.low > 1.2
    assert found.num_pairs == 5


def test_hiccup_among_two_or_three_pairs_makes_the_interval_wide() -> None:
    for count in (2, 3):
        found = compare([300.0] + [100.0] * (count - 1), [100.0] * count)
        assert found.low < 1.0 < found.high


def test_more_looks_a_higher_confidence_and_a_loaded_machine_widen_the_interval() -> None:
    baseline, candidate = [120.0, 121.0, 119.0, 120.5], [100.0] * 4
    plain = compare(baseline, candidate)
    others = (
        compare(baseline, candidate, num_looks=5),
        compare(baseline, candidate, confidence=0.99),
        compare(baseline, candidate, load_fraction=0.3),
    )
    for other in others:
        assert other.value == plain.value
        assert other.low < plain.low < plain.high < other.high


def turns(step_ns: float, num_turns: int, slow: Container[int] = ()) -> dict[int, float]:
    """Return turns of a machine that slows down from each to the next, and some held up."""
    return {
        turn: step_ns * 1.01**turn * (30.0 if turn in slow else 1.0) for turn in range(num_turns)
    }


def test_turns_cancel_what_both_met_and_trim_what_held_up_one() -> None:
    found = compare_turns(
        turns(120.0, 40, slow=range(5, 12)), turns(100.0, 40, slow={20, 30}), TurnKind.LONG
    )
    assert found is not None
    assert found.log_ratio == pytest.approx(log(1.2))
    assert found.error == pytest.approx(0.0, abs=1e-9)


def test_error_of_turns_is_that_of_a_winsorized_sample() -> None:
    ratios = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.9)
    found = compare_turns(
        {turn: 100.0 * exp(ratio) for turn, ratio in enumerate(ratios)},
        dict.fromkeys(range(8), 100.0),
        TurnKind.SHORT,
    )
    assert found is not None
    assert found.log_ratio == pytest.approx((0.02 + 0.03 + 0.04 + 0.05) / 4)
    # Three at 0.02, 0.03, 0.04, three at 0.05: the sum of squares is 0.0014 to four digits.
    squares = 3 * 0.015**2 + 0.005**2 + 0.005**2 + 3 * 0.015**2
    assert found.error == pytest.approx(sqrt(squares / 7) * sqrt(8) / 4)


def test_few_turns_in_common_say_nothing() -> None:
    assert (
        compare_turns(turns(120.0, 40), {turn + 33: 1.0 for turn in range(40)}, TurnKind.SHORT)
        is None
    )
    assert compare_turns({}, {}, TurnKind.SHORT) is None


def test_a_pair_in_turns_decides_where_others_do_not() -> None:
    def low(error: float, kind: TurnKind) -> float:
        return compare_pairs([RunRatio(log_ratio=log(1.3), error=error, turns=kind)]).low

    assert low(0.0, TurnKind.NONE) < 1.0 < low(0.01, TurnKind.LONG) < 1.05
    assert low(0.01, TurnKind.SHORT) > 1.1
    # The error within the pair is part of it.
    assert low(0.2, TurnKind.LONG) <= low(0.2, TurnKind.SHORT) < 1.0


def test_pairs_in_turns_that_contradict_each_other_are_not_believed() -> None:
    pairs = [RunRatio(log_ratio=ratio, error=0.005, turns=TurnKind.SHORT) for ratio in (0.1, 0.3)]
    assert compare_pairs(pairs).low < 1.0


def test_pairs_of_which_load_disturbed_every_step_count_only_if_no_others_do() -> None:
    bound = RunRatio(log_ratio=log(20.0), bounds=(log(2.0), log(40.0)))
    wider = RunRatio(log_ratio=log(20.0), bounds=(log(3.0), log(400.0)))
    quiet = RunRatio(log_ratio=log(9.0), error=0.01, turns=TurnKind.LONG)
    found = compare_pairs([bound, quiet, quiet])
    alone = compare_pairs([quiet, quiet])
    assert (found.value, found.low, found.high) == (alone.value, alone.low, alone.high)
    assert found.num_pairs == 2
    found = compare_pairs([bound, wider])
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(400.0)


def test_many_pairs_that_are_not_normal_count_by_their_median() -> None:
    ratios = (0.3, 0.35, 0.4, 0.45, 0.5, 2.0, 3.0, 0.25)
    found = compare_pairs([RunRatio(log_ratio=ratio) for ratio in ratios])
    assert log(found.value) == pytest.approx(0.425)
    assert (log(found.low), log(found.high)) == (pytest.approx(0.25), pytest.approx(3.0))
