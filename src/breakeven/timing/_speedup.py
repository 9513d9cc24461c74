"""How much faster one way of running is than another, from pairs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from statistics import NormalDist, fmean

import msgspec

# Standard deviation of the logarithm of the ratio of two runs that do the same, on a quiet
# machine: where memory comes to lie and which core is taken differ from process to process, by 1
# to 2 %. A few pairs that agree better than that do so by chance.
# Source: T. Kalibera, R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013, for the
# effect; the size is that of repeated runs of small networks on two cores.
LEAST_SPREAD = 0.015
# The same on a noisy machine: a run that varies by some 13 %. One pair says nothing of its
# spread, and of two the t distribution asks for twelve times it; a spread above this one is not
# taken to be there where the pairs do not show it.
_NOISY_SPREAD = 0.18
# Load that stays slows both sides alike; what comes and goes is taken to be a tenth of it.
_LOAD_SPREAD = 0.1
# A pair of which something else held up one run all along lies far away from the other pairs: by
# this many times their spread, and by more than even a noisy machine scatters them.
_HICCUP_FACTOR = 8.0
_LEAST_HICCUP = 2 * _NOISY_SPREAD
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
    baseline_ns: Sequence[float],
    candidate_ns: Sequence[float],
    confidence: float = 0.95,
    *,
    num_looks: int = 1,
    load_fraction: float = 0.0,
) -> Speedup:
    """Return how much faster the candidate is, from runs taken in turn.

    Pairs must come in the order A B, B A, A B, ...: what drifts steadily adds to one pair what it
    takes from the next. The interval is Student's on the logarithms of the ratios, with a least
    spread that no agreement of a few pairs goes below, and one that it does not go above unless
    the pairs themselves do. Of four pairs or more, one that is far out of line is left out.

    Args:
        baseline_ns: Median step of each run without the change.
        candidate_ns: Median step of the run with it that belongs to each.
        confidence: Probability that the interval holds the true ratio.
        num_looks: How often the interval may be looked at before it is decided whether to go on.
            All of them together are wrong as rarely as ``confidence`` says.
        load_fraction: Share of the machine that other processes used, 0 to 1; widens the interval.

    Source: Student's t; for looks, Bonferroni's inequality.
    """
    if len(baseline_ns) != len(candidate_ns):
        raise ValueError(f"{len(baseline_ns)} runs cannot be paired with {len(candidate_ns)}")
    if not baseline_ns:
        return Speedup(value=1.0, low=0.0, high=inf, num_pairs=0)
    ratios = _without_hiccup(
        [log(before / after) for before, after in zip(baseline_ns, candidate_ns, strict=True)]
    )
    middle = fmean(ratios)
    tail = (1.0 - confidence) / num_looks / 2.0
    half = min(_half_width(ratios, tail, load_fraction), _WIDEST)
    return Speedup(
        value=exp(middle),
        low=exp(middle - half),
        high=exp(middle + half),
        num_pairs=len(baseline_ns),
    )


def _half_width(ratios: Sequence[float], tail: float, load_fraction: float) -> float:
    """Return half of the interval that leaves the probability ``tail`` out on either side."""
    least = LEAST_SPREAD + _LOAD_SPREAD * load_fraction
    noisy = _NOISY_SPREAD + load_fraction
    normal = NormalDist().inv_cdf(1.0 - tail)
    if len(ratios) == 1:
        return normal * noisy
    spread = max(_deviation(ratios), least)
    factor = _student_quantile(len(ratios) - 1, tail)
    if spread <= noisy:
        factor = min(factor, normal * noisy / spread)
    return factor * spread / sqrt(len(ratios))


def _without_hiccup(ratios: list[float]) -> list[float]:
    """Return the ratios without the one that a hiccup of the machine must have made, if any."""
    if len(ratios) <= _FEWEST_OTHERS:
        return ratios
    middle = fmean(ratios)
    farthest = max(range(len(ratios)), key=lambda index: abs(ratios[index] - middle))
    others = ratios[:farthest] + ratios[farthest + 1 :]
    reach = max(_HICCUP_FACTOR * _deviation(others), _LEAST_HICCUP)
    return others if abs(ratios[farthest] - fmean(others)) > reach else ratios


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, as ``statistics.stdev`` does a lot slower."""
    middle = fmean(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


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
