"""The speedup between two ways of running, from pairs of runs that may take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from statistics import NormalDist, fmean, median, stdev

import msgspec

# Fraction of the ratios trimmed at either end: turns in which a stall hit one of the two runs.
_TRIMMED = 0.25
# With fewer turns, too few ratios remain after the trimming.
_FEWEST_TURNS = 8


class TurnKind(StrEnum):
    """The way in which two runs share the machine.

    If they take turns of a few steps each, a disturbance hits both.
    """

    NONE = "none"
    """One after the other."""
    SHORT = "short"
    """In turns on one processor, both on one thread: they leave its caches to each other."""
    LONG = "long"
    """In turns on several processors: a pool of threads spins on for a while after its work."""


class RunRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of the step times of two runs.

    Args:
        log_ratio: Natural logarithm of the ratio.
        error: Standard error of ``log_ratio`` within the two runs, if they took turns; otherwise
            unknown, and 0.
        turns: Kind of turns.
        bounds: Ends of the range of ``log_ratio`` that load allows, if it disturbed every step of a
            run; None otherwise.
    """

    log_ratio: float
    error: float = 0.0
    turns: TurnKind = TurnKind.NONE
    bounds: tuple[float, float] | None = None


def compare_runs(baseline_ns: float, candidate_ns: float) -> RunRatio:
    """Return the ratio of two runs, one after the other.

    Args:
        baseline_ns: Median step without a change.
        candidate_ns: Median step with it.
    """
    return RunRatio(log_ratio=log(baseline_ns / candidate_ns))


def compare_turns(
    baseline_ns: Mapping[int, float], candidate_ns: Mapping[int, float], turns: TurnKind
) -> RunRatio | None:
    """Return the ratio of two runs that took turns; None if they share too few turns.

    Turns of the same number are neighbours in time: a slowdown of both cancels in their ratio, and
    a stall of one gives an outlier, which is trimmed.

    Args:
        baseline_ns: Median step of each turn of the run without a change, by its number.
        candidate_ns: The same for the run with it.
        turns: Kind of turns.

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


# Standard deviation of the logarithm of the ratio of two equal runs on a quiet machine. Memory
# layout and choice of core differ between processes, by 1 to 2 %. A few pairs that agree better do
# so by chance.
# Source: T. Kalibera, R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013, for the
# effect; the size is that of repeated runs of small networks on two cores.
LEAST_SPREAD = 0.015
# The same spread as expected on a noisy machine. One pair does not show its spread, and for two the
# t distribution demands twelve times the spread; a spread above the expected one is assumed only if
# the pairs show it. For runs that took turns, the error within the pair is added.
# Source, for one after the other: a run that varies by some 13 %. For short turns: 6 to 8 pairs of
# equal runs of each of two small networks, on one thread under other load; they spread by 0.5 to
# 1.7 %, including an error of 1 % within the pairs. For long turns: 8 pairs of each of seven
# networks on two cores; five spread by 0.7 to 1.3 %, a transformer by 6 to 9 %, and LeNet by 20 %
# and more, since its memory layout differed between processes. This is too rare to expect for all
# networks; only enough pairs show it.
_EXPECTED_SPREADS = {TurnKind.NONE: 0.18, TurnKind.SHORT: 0.02, TurnKind.LONG: 0.12}
# A spread above the expected one also occurs by chance. Beyond the 95 % quantile of chance, the
# expectation is wrong.
_CHANCE = 0.95
# Load also spoils caches and slows one side more: assume a tenth of it as spread.
_LOAD_SPREAD = 0.1
# If a stall hits one run of a pair throughout, the pair is an outlier. It lies farther from the
# others than this multiple of their spread, and than the spread of a noisy machine.
_OUTLIER_FACTOR = 8.0
_LEAST_OUTLIER = 2 * _EXPECTED_SPREADS[TurnKind.NONE]
# With fewer other pairs, the outlier cannot be identified.
_FEWEST_OTHERS = 3
_HALVINGS = 60
# An interval wider than this on either side is useless, and numbers overflow.
_WIDEST = log(1e6)


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """Step time without a change over step time with it; above 1, the change is faster.

    Args:
        value: The ratio.
        low: Lower end of its confidence interval.
        high: Upper end; infinite without pairs.
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
    """Return the speedup of the candidate from pairs of runs.

    Pairs must come in the order A B, B A, A B, ...: a steady drift then cancels between neighbours.
    The interval is Student's on the logarithms of the ratios. Its spread is at least
    ``LEAST_SPREAD``, however well a few pairs agree, and at most the expected one unless the pairs
    contradict that. If enough pairs do, they are not assumed to be normal: the result is their
    median, with a distribution-free interval. Of four pairs or more, one far outlier is left out.
    Pairs of which load disturbed every step are left out too. Without other pairs, the interval
    covers all ratios that their load allows.

    Args:
        pairs: Time without the change over time with it, of each pair.
        confidence: Probability that the interval holds the true ratio.
        num_looks: How often the interval may be inspected to decide on another pair. All
            inspections together are wrong as rarely as ``confidence`` says.
        load_fraction: Fraction of the machine that other processes used, 0 to 1; widens the
            interval of runs that did not share one processor in short turns.

    Source: Student's t; order statistics; for looks, Bonferroni's inequality.
    """
    if not pairs:
        return Speedup(value=1.0, low=0.0, high=inf, num_pairs=0)
    pairs = [pair for pair in pairs if pair.bounds is None] or pairs
    ratios = _without_outlier([pair.log_ratio for pair in pairs])
    tail = (1.0 - confidence) / num_looks / 2.0
    least = LEAST_SPREAD
    expected = sqrt(fmean(_expected_variance(pair, load_fraction) for pair in pairs))
    if any(pair.turns is not TurnKind.SHORT for pair in pairs):
        least += _LOAD_SPREAD * load_fraction
    low, middle, high = _interval(ratios, tail, least, expected)
    bounds = [pair.bounds for pair in pairs if pair.bounds is not None]
    low = min([low, *(least for least, _ in bounds)])
    high = max([high, *(most for _, most in bounds)])
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
    """Return the low end, middle and high end of the interval with probability ``tail`` per side.

    Args:
        ratios: Logarithms of the pairs' ratios.
        tail: Probability outside the interval on either side.
        least: Least spread of the pairs.
        expected: Expected spread of the pairs.
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
        # The median lies above or below all pairs with the probability that as many coins agree.
        return min(ratios), median(ratios), max(ratios)
    return middle - half, middle, middle + half


def _without_outlier(ratios: list[float]) -> list[float]:
    """Return the ratios without the outlier of a stall, if any."""
    if len(ratios) <= _FEWEST_OTHERS:
        return ratios
    middle = fmean(ratios)
    farthest = max(range(len(ratios)), key=lambda index: abs(ratios[index] - middle))
    others = ratios[:farthest] + ratios[farthest + 1 :]
    reach = max(_OUTLIER_FACTOR * _deviation(others), _LEAST_OUTLIER)
    return others if abs(ratios[farthest] - fmean(others)) > reach else ratios


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; ``statistics.stdev`` is much slower."""
    middle = fmean(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _chi_square_quantile(degrees: int) -> float:
    """Return the ``_CHANCE`` quantile of the chi-square distribution.

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
