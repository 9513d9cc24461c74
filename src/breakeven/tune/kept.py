"""The candidates that are kept, and the configuration that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from breakeven.settings import Candidate, StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics, Trial

# From what must be bit for bit the same to what may be quite different.
_STRICTNESS = (Numerics.EXACT, Numerics.REORDERED, Numerics.LOWER_PRECISION, Numerics.TRAINING)


@dataclass(frozen=True, slots=True)
class Kept:
    """A candidate that is part of the configuration, and its trial."""

    candidate: Candidate
    trial: Trial


def configuration_of(kept: Iterable[Kept]) -> Configuration:
    """Return the configuration of candidates, in the order in which they were added."""
    configuration = Configuration()
    for each in kept:
        configuration = each.candidate.apply(configuration)
    return configuration


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


def why_not_added(candidate: Candidate, kept: Sequence[Kept], facts: StepFacts) -> str | None:
    """Return why a candidate cannot be added to those that are kept; None where it can."""
    base = configuration_of(kept)
    if reason := candidate.why_not(facts, base):
        return reason
    changed = candidate.apply(base)
    if changed == base:
        return "changes nothing that is not changed already"
    if any(getattr(changed, name) != value for name, value in base.changes.items()):
        for each in kept:
            if each.candidate.family == candidate.family:
                return f"{each.candidate.name} is kept instead"
    return None


def least_strict(candidates: Iterable[Candidate]) -> Numerics:
    """Return what all candidates together may do to the numbers."""
    classes = [each.numerics for each in candidates]
    return max(classes, key=_STRICTNESS.index, default=Numerics.EXACT)
