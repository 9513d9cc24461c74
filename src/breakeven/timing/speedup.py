"""How much faster one way of running is than another, from pairs of runs, in turns or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from statistics import NormalDist, fmean, median, stdev

import msgspec

# Of the ratios, cut off at either end: the turns in which something held up one of the two runs.
_TRIMMED = 0.25
# With fewer the ends that are cut off say nothing of the rest.
_FEWEST_TURNS = 8


class TurnKind(StrEnum):
    """How two runs share the machine.

    In turns, a few steps each, whatever disturbs one disturbs both.
    """

    NONE = "none"
    """One after the other."""
    SHORT = "short"
    """In turns on one processor, both on one thread: they leave its caches to each other."""
    LONG = "long"
    """In turns on several processors: a pool of threads spins on for a while after its work."""


class RunRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer a step takes in one run than in another.

    Args:
        log_ratio: Natural logarithm of the ratio.
        error: Standard error of ``log_ratio`` within the two runs, where they took turns; else
            nothing is known of it.
        turns: Which they took.
    """

    log_ratio: float
    error: float = 0.0
    turns: TurnKind = TurnKind.NONE


def compare_runs(baseline_ns: float, candidate_ns: float) -> RunRatio:
    """Return the ratio of two runs of which one followed the other.

    Args:
        baseline_ns: Median step without a change.
        candidate_ns: Median step with it.
    """
    return RunRatio(log_ratio=log(baseline_ns / candidate_ns))


def compare_turns(
    baseline_ns: Mapping[int, float], candidate_ns: Mapping[int, float], turns: TurnKind
) -> RunRatio | None:
    """Return the ratio of two runs that took turns; None where they share too few of them.

    Turns of the same number are neighbours in time: what slows down both cancels in their ratio,
    and what holds up one of them makes a ratio that is trimmed off.

    Args:
        baseline_ns: Median step of each turn of the run without a change, by its number.
        candidate_ns: The same of the run with it.
        turns: Which they took.

    Source: trimmed mean, with the standard error of the winsorized sample: J. W. Tukey,
    D. H. McLaughlin, "Less vulnerable confidence and significance procedures for location based
    on a single sample", Sankhya A 25 (1963).
    """
    common = baseline_ns.keys() & candidate_ns.keys()
    if len(common) < _FEWEST_TURNS:
        return None
    ratios = sorted(log(baseline_ns[turn] / candidate_ns[turn]) for turn in common)
    cut = int(_TRIMMED * len(ratios))
    middle = ratios[cut : len(ratios) - cut]
    winsorized = [min(max(ratio, middle[0]), middle[-1]) for ratio in ratios]
    error = stdev(winsorized) * sqrt(len(ratios)) / len(middle)
    return RunRatio(log_ratio=fmean(middle), error=error, turns=turns)


# Standard deviation of the logarithm of the ratio of two runs that do the same, on a quiet
# machine: where memory comes to lie and which core is taken differ from process to process, by 1
# to 2 %. A few pairs that agree better than that do so by chance.
# Source: T. Kalibera, R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013, for the
# effect; the size is that of repeated runs of small networks on two cores.
LEAST_SPREAD = 0.015
# The same that is expected on a noisy machine. One pair says nothing of its spread, and of two the
# t distribution asks for twelve times it; a spread above what is expected is not taken to be there
# where the pairs do not show it. Of runs that took turns the error within the pair comes on top.
# Source, for one after the other: a run that varies by some 13 %. For short turns: 6 to 8 pairs of
# equal runs of each of two small networks, on one thread beside other load, which spread by 0.5 to
# 1.7 %, an error of 1 % within the pairs included. For long turns: 8 pairs of each of seven
# networks on two cores; five spread by 0.7 to 1.3 %, a transformer by 6 to 9 %, and LeNet by 20 %
# and more, where memory lay otherwise in one process than in the other: too rare to expect of all,
# and told only by pairs enough to show it.
_EXPECTED_SPREADS = {TurnKind.NONE: 0.18, TurnKind.SHORT: 0.02, TurnKind.LONG: 0.12}
# A spread above the expected one shows by chance as well. Beyond the 95 % quantile of chance, it
# is the expectation that is wrong.
_CHANCE = 0.95
# Load that stays slows both sides alike; what comes and goes is taken to be a tenth of it.
_LOAD_SPREAD = 0.1
# A pair of which something else held up one run all along lies far away from the other pairs: by
# this many times their spread, and by more than even a noisy machine scatters them.
_OUTLIER_FACTOR = 8.0
_LEAST_OUTLIER = 2 * _EXPECTED_SPREADS[TurnKind.NONE]
# With fewer pairs besides it nothing tells which one is out of line.
_FEWEST_OTHERS = 3
_HALVINGS = 60
# Wider than this on either side an interval says nothing, and numbers overflow.
_WIDEST = log(1e6)


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """Time without a change over time with it: above 1, the change is faster.

    Args:
        value: The ratio.
        low: Lower end of its confidence interval.
        high: Upper end; infinite where there is no pair.
        num_pairs: Pairs of runs that were compared.
    """

    value: float
    low: float
    high: float
    num_pairs: int


def compare_pairs(
    pairs: Sequence[RunRatio],
    confidence: float = 0.95,
    *,
    num_looks: int = 1,
    load_fraction: float = 0.0,
) -> Speedup:
    """Return how much faster the candidate is, from pairs of runs.

    Pairs must come in the order A B, B A, A B, ...: what drifts steadily adds to one pair what it
    takes from the next. The interval is Student's on the logarithms of the ratios, with a least
    spread that no agreement of a few pairs goes below, and an expected one that it does not go
    above unless the pairs contradict it. Pairs that do, and are many enough, are not taken to be
    normal: their median counts, with an interval free of assumptions. Of four pairs or more, one
    that is far out of line is left out.

    Args:
        pairs: Time without the change over time with it, of each pair.
        confidence: Probability that the interval holds the true ratio.
        num_looks: How often the interval may be looked at before it is decided whether to go on.
            All of them together are wrong as rarely as ``confidence`` says.
        load_fraction: Share of the machine that other processes used, 0 to 1; widens the interval
            of runs that did not take turns.

    Source: Student's t; order statistics; for looks, Bonferroni's inequality.
    """
    if not pairs:
        return Speedup(value=1.0, low=0.0, high=inf, num_pairs=0)
    ratios = _without_outlier([pair.log_ratio for pair in pairs])
    tail = (1.0 - confidence) / num_looks / 2.0
    least = LEAST_SPREAD
    expected = sqrt(fmean(_expected_variance(pair, load_fraction) for pair in pairs))
    if any(pair.turns is TurnKind.NONE for pair in pairs):
        least += _LOAD_SPREAD * load_fraction
    low, middle, high = _interval(ratios, tail, least, expected)
    return Speedup(
        value=exp(middle),
        low=exp(max(low, middle - _WIDEST)),
        high=exp(min(high, middle + _WIDEST)),
        num_pairs=len(pairs),
    )


def _expected_variance(pair: RunRatio, load_fraction: float) -> float:
    spread = _EXPECTED_SPREADS[pair.turns]
    if pair.turns is TurnKind.NONE:
        spread += load_fraction
    return spread**2 + pair.error**2


def _interval(
    ratios: Sequence[float], tail: float, least: float, expected: float
) -> tuple[float, float, float]:
    """Return the interval that leaves the probability ``tail`` out on either side, and its middle.

    Args:
        ratios: Of the pairs.
        tail: Probability.
        least: Spread that the pairs have at least.
        expected: Spread that they are expected to have.
    """
    count, middle = len(ratios), fmean(ratios)
    normal = NormalDist().inv_cdf(1.0 - tail) / sqrt(count)
    if count == 1:
        return middle - normal * expected, middle, middle + normal * expected
    spread = max(_deviation(ratios), least)
    half = _student_quantile(count - 1, tail) * spread / sqrt(count)
    if spread <= expected * sqrt(_chi_square_quantile(count - 1) / (count - 1)):
        half = min(half, normal * max(spread, expected))
    elif count * log(2.0) >= -log(tail):
        # The true median lies above all pairs, or below all, as rarely as so many coins agree.
        return min(ratios), median(ratios), max(ratios)
    return middle - half, middle, middle + half


def _without_outlier(ratios: list[float]) -> list[float]:
    """Return the ratios without the outlier that a stall of the machine must have made, if any."""
    if len(ratios) <= _FEWEST_OTHERS:
        return ratios
    middle = fmean(ratios)
    farthest = max(range(len(ratios)), key=lambda index: abs(ratios[index] - middle))
    others = ratios[:farthest] + ratios[farthest + 1 :]
    reach = max(_OUTLIER_FACTOR * _deviation(others), _LEAST_OUTLIER)
    return others if abs(ratios[farthest] - fmean(others)) > reach else ratios


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, as ``statistics.stdev`` does a lot slower."""
    middle = fmean(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _chi_square_quantile(degrees: int) -> float:
    """Return what chi-square exceeds with the probability that is left of ``_CHANCE``.

    Source: E. B. Wilson, M. M. Hilferty, "The distribution of chi-square", PNAS 17 (1931).
    """
    part = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - part + NormalDist().inv_cdf(_CHANCE) * sqrt(part)) ** 3


@lru_cache
def _student_quantile(degrees: int, tail: float) -> float:
    """Return the t that Student's distribution exceeds with probability ``tail``, below 1/2."""
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        if _outside(degrees, angle) > 2 * tail:
            low = angle
        else:
            high = angle
    return tan(low) * sqrt(degrees)


def _outside(degrees: int, angle: float) -> float:
    """Return the probability that |t| exceeds the square root of ``degrees`` times tan(angle).

    Source: M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    is_odd = degrees % 2 == 1
    term = cos(angle) if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for power in range(3 if is_odd else 2, degrees - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    inside = sin(angle) * total
    return 1.0 - ((angle + inside) * 2 / pi if is_odd else inside)
