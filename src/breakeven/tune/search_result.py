"""The result of a search, and the reasons in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from breakeven.errors import Caveat
from breakeven.settings import Candidate, StepFacts
from breakeven.timing import BUSY_MACHINE, Speedup
from breakeven.trace import Configuration
from breakeven.tune.budget import RunLength
from breakeven.tune.runs import RunResult
from breakeven.units import format_digits, format_duration, format_percent
from breakeven.verdict import Numerics, Trial

# From bit for bit identical to possibly quite different.
_STRICTNESS = (Numerics.EXACT, Numerics.REORDERED, Numerics.LOWER_PRECISION, Numerics.TRAINING)
# Do not print the ends of an interval wider than this.
_TELLING_RANGE = 10.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A candidate that is part of the configuration, and its trial."""

    candidate: Candidate
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search, not yet confirmed.

    Args:
        kept: Candidates of the configuration, in the order in which they were added.
        trials: Every candidate, in the order of the trials.
        baseline: The first run of the unchanged script.
        caveats: Caveats of the measurement.
    """

    kept: tuple[Kept, ...]
    trials: tuple[Trial, ...]
    baseline: RunResult
    caveats: tuple[Caveat, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """The configuration of all kept candidates; empty if there are none."""
        return configuration_of(self.kept)


def configuration_of(kept: Iterable[Kept]) -> Configuration:
    """Return the configuration of candidates, in the order in which they were added."""
    configuration = Configuration()
    for each in kept:
        configuration = each.candidate.apply(configuration)
    return configuration


def without(kept: Sequence[Kept], dropped: Kept, facts: StepFacts) -> Configuration | None:
    """Return the configuration without one candidate; None if another builds on it."""
    configuration = Configuration()
    for each in kept:
        if each is dropped:
            continue
        if each.candidate.why_not(facts, configuration) is not None:
            return None
        configuration = each.candidate.apply(configuration)
    return configuration


def least_strict(candidates: Iterable[Candidate]) -> Numerics:
    """Return the combined effect that candidates may have on the numbers."""
    classes = [each.numerics for each in candidates]
    return max(classes, key=_STRICTNESS.index, default=Numerics.EXACT)


def pays_off_after(startup_ns: float, base_step_ns: float, speedup: float) -> int | None:
    """Return the number of steps after which a later start pays off; None if it never does.

    Args:
        startup_ns: Delay of the first steady step.
        base_step_ns: Step time of the base.
        speedup: Ratio of the base's step time to the new one.
    """
    if speedup <= 1.0:
        return None
    return max(0, ceil(startup_ns / (base_step_ns * (1.0 - 1.0 / speedup))))


def busy_caveat(load_fraction: float) -> Caveat:
    """Return the caveat for runs disturbed by other processes."""
    return Caveat(
        code=BUSY_MACHINE,
        message=f"other processes used {format_percent(load_fraction)} of this machine "
        "meanwhile: intervals are wider, and small gains may have been missed",
    )


def ratio_text(speedup: Speedup) -> str:
    """Return ``1.31× [1.22, 1.41] after 2 pairs of runs``."""
    plural = "" if speedup.num_pairs == 1 else "s"
    after = f"after {speedup.num_pairs} pair{plural} of runs"
    if speedup.high > _TELLING_RANGE * speedup.low:
        return f"{short_text(speedup)} {after}, which differ too much to say more"
    low, high = format_digits(speedup.low), format_digits(speedup.high)
    return f"{short_text(speedup)} [{low}, {high}] {after}"


def short_text(speedup: Speedup) -> str:
    """Return ``1.31×``."""
    return f"{format_digits(speedup.value)}×"


def starts_too_late(
    speedup: Speedup, startup_ns: float, after_steps: int | None, length: RunLength
) -> str:
    """Return the reason of a candidate that starts too late to pay off."""
    pays = "never pays off"
    if after_steps is not None:
        pays = f"pays off after {after_steps:,} steps; this run has {length.num_steps:,}"
    later = format_duration(max(0.0, startup_ns), 2)
    return f"{short_text(speedup)}, but starts {later} later: {pays}"
