"""What a search found, and how it is taken apart again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from breakeven.errors import Caveat
from breakeven.settings import Candidate, StepFacts
from breakeven.trace import Configuration
from breakeven.tune.trial_runs import RunResult
from breakeven.verdict import Numerics, Trial

# From what must be bit for bit the same to what may be quite different.
_STRICTNESS = (
    Numerics.EXACT,
    Numerics.REORDERED,
    Numerics.LOWER_PRECISION,
    Numerics.TRAINING,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A candidate that is part of the configuration, and its trial."""

    candidate: Candidate
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found; nothing of it is confirmed yet.

    Args:
        configuration: Of all that is kept; empty where nothing is.
        kept: What it consists of, in the order in which it was added.
        trials: Every candidate, in the order in which they were tried.
        baseline: The script as it is, at the beginning.
        caveats: What to know of the measurement.
    """

    configuration: Configuration
    kept: tuple[Kept, ...]
    trials: tuple[Trial, ...]
    baseline: RunResult
    caveats: tuple[Caveat, ...] = ()


def without(kept: Sequence[Kept], dropped: Kept, facts: StepFacts) -> Configuration | None:
    """Return the configuration of all but one; None where another one builds on that one."""
    configuration = Configuration()
    for each in kept:
        if each is dropped:
            continue
        if each.candidate.why_not(facts, configuration) is not None:
            return None
        configuration = each.candidate.apply(configuration)
    return configuration


def least_strict(candidates: Iterable[Candidate]) -> Numerics:
    """Return what all candidates together may do to the numbers."""
    classes = [each.numerics for each in candidates]
    return max(classes, key=_STRICTNESS.index, default=Numerics.EXACT)


def pays_off_after(startup_ns: float, base_step_ns: float, speedup: float) -> int | None:
    """Return after how many steps a later start is earned back; None where it never is.

    Args:
        startup_ns: How much later the first steady step begins.
        base_step_ns: A step before.
        speedup: A step before over a step now.
    """
    if speedup <= 1.0:
        return None
    return max(0, ceil(startup_ns / (base_step_ns * (1.0 - 1.0 / speedup))))
