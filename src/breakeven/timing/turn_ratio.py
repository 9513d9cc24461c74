"""How two runs can be compared, and the ratio of two that took turns."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import log, sqrt
from statistics import fmean, stdev

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
    baseline_ns: Mapping[int, float],
    candidate_ns: Mapping[int, float],
    turns: TurnKind,
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
