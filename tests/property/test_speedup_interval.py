"""How often the interval of a speedup holds the truth, and how often looking at it misleads."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, nextafter
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven.timing import RunRatio, Speedup, TurnKind, compare_pairs, compare_runs

Pairs = tuple[list[float], list[float]]
_times = st.floats(1e3, 1e9)
_pairs = st.lists(st.tuples(_times, _times), min_size=1, max_size=10)

# Per run: what the clock speed of a machine that warms up may lose.
_DRIFT = 0.003
_REPETITIONS = 800


def compare(
    baseline_ns: Sequence[float], candidate_ns: Sequence[float], *args: Any, **options: Any
) -> Speedup:
    """Compare runs of which one followed the other."""
    pairs = [compare_runs(*pair) for pair in zip(baseline_ns, candidate_ns, strict=True)]
    return compare_pairs(pairs, *args, **options)


def simulate(random: Random, ratio: float, noise: float, num_pairs: int) -> Pairs:
    """Return runs A B, B A, A B, ... with lognormal noise and a steady drift."""
    baseline: list[float] = []
    candidate: list[float] = []
    for pair in range(num_pairs):
        for place, is_baseline in enumerate((pair % 2 == 0, pair % 2 == 1)):
            time = 1e6 * exp(random.gauss(0.0, noise) + _DRIFT * (2 * pair + place))
            if is_baseline:
                baseline.append(time)
            else:
                candidate.append(time / ratio)
    return baseline, candidate


def accepts(pairs: Pairs, looks: Sequence[int], above: float) -> bool:
    """Return whether one of several looks finds the interval above a bound."""
    baseline, candidate = pairs
    return any(
        compare(baseline[:count], candidate[:count], num_looks=len(looks)).low > above
        for count in looks
    )


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("num_pairs", [1, 2, 3, 4, 6, 8])
def test_interval_holds_the_truth(noise: float, num_pairs: int) -> None:
    random = Random(f"{noise} {num_pairs}")
    ratio = 1.07
    held = 0
    for _ in range(_REPETITIONS):
        found = compare(*simulate(random, ratio, noise, num_pairs))
        held += found.low <= ratio <= found.high
    assert held / _REPETITIONS >= 0.93


@pytest.mark.parametrize(
    ("turns", "spread"), [(TurnKind.SHORT, 0.015), (TurnKind.LONG, 0.02), (TurnKind.LONG, 0.09)]
)
@pytest.mark.parametrize("error", [0.003, 0.01, 0.05])
@pytest.mark.parametrize("num_pairs", [1, 2, 3, 4, 6, 8])
def test_interval_of_pairs_in_turns_holds_the_truth(
    turns: TurnKind, spread: float, error: float, num_pairs: int
) -> None:
    """Processes differ, and turns leave an error within each pair."""
    random = Random(f"turns {error} {num_pairs}")
    held = 0
    for _ in range(_REPETITIONS):
        ratios = [
            log(1.07) + random.gauss(0.0, spread) + random.gauss(0.0, error)
            for _ in range(num_pairs)
        ]
        found = compare_pairs(
            [RunRatio(log_ratio=ratio, error=error, turns=turns) for ratio in ratios]
        )
        held += found.low <= 1.07 <= found.high
    assert held / _REPETITIONS >= 0.93


def test_interval_of_pairs_that_are_not_normal_holds_the_truth() -> None:
    """Now and then something holds one of the two runs up for many times as long."""
    random = Random("hiccups")
    held = 0
    for _ in range(_REPETITIONS):
        ratios = [
            log(1.2) + random.gauss(0.0, 0.05) + random.choice((0.0, 0.0, 0.0, 2.0, -2.0))
            for _ in range(8)
        ]
        found = compare_pairs([RunRatio(log_ratio=ratio) for ratio in ratios])
        held += found.low <= 1.2 <= found.high
    assert held / _REPETITIONS >= 0.95


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_a_slower_one_is_hardly_ever_taken_for_a_faster_one(noise: float) -> None:
    random = Random(str(noise))
    looks = (3, 4, 6, 8)
    wrong = sum(
        accepts(simulate(random, 0.98, noise, looks[-1]), looks, 1.02) for _ in range(_REPETITIONS)
    )
    assert wrong / _REPETITIONS < 0.01


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_looking_after_each_pair_is_wrong_as_rarely_as_promised(noise: float) -> None:
    random = Random(f"looks {noise}")
    looks = range(1, 9)
    wrong = sum(
        accepts(simulate(random, 1.0, noise, looks[-1]), looks, nextafter(1.0, 2.0))
        for _ in range(_REPETITIONS)
    )
    # Half of the 5 % lies on the other side.
    assert wrong / _REPETITIONS <= 0.025


def test_a_gain_of_a_tenth_is_seen_on_a_quiet_machine_with_few_pairs() -> None:
    random = Random(7)
    looks = (3, 4, 6, 8)
    seen = sum(accepts(simulate(random, 1.1, 0.01, looks[-1]), looks[:2], 1.02) for _ in range(200))
    assert seen >= 190


@example(pairs=[(1e3, 1e3), (5.697e3, 1e3)], confidence=0.9921875, num_looks=10, load=0.0)
@given(_pairs, st.floats(0.5, 0.999), st.integers(1, 10), st.floats(0, 1))
def test_value_lies_in_its_interval_and_swapping_sides_inverts_it(
    pairs: list[tuple[float, float]], confidence: float, num_looks: int, load: float
) -> None:
    baseline, candidate = zip(*pairs, strict=True)
    found = compare(baseline, candidate, confidence, num_looks=num_looks, load_fraction=load)
    other = compare(candidate, baseline, confidence, num_looks=num_looks, load_fraction=load)
    assert found.low <= found.value <= found.high
    # Of pairs that contradict each other, 0 and infinity.
    assert found.low == pytest.approx(1 / other.high, rel=1e-6)
    assert log(found.value) == pytest.approx(-log(other.value), abs=1e-6)
