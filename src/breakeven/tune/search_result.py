"""What came of each candidate and why, and what a search found."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import median

from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.settings import Candidate
from breakeven.timing import BUSY_FRACTION, BUSY_MACHINE, Speedup
from breakeven.trace import Configuration
from breakeven.tune.kept import Kept, configuration_of
from breakeven.tune.length import RunLength
from breakeven.tune.paired_runs import CandidateRival, searched_speedup
from breakeven.tune.trial_runs import RunResult
from breakeven.units import NS_PER_S, format_digits, format_duration, format_percent
from breakeven.verdict import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found; nothing of it is confirmed yet.

    Args:
        kept: What the configuration consists of, in the order in which it was added.
        trials: Every candidate, in the order in which they were tried.
        baseline: The script as it is, at the beginning.
        caveats: What to know of the measurement.
    """

    kept: tuple[Kept, ...]
    trials: tuple[Trial, ...]
    baseline: RunResult
    caveats: tuple[Caveat, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """Return that of all that is kept; empty where nothing is."""
        return configuration_of(self.kept)


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


def measured(
    trial: Trial, speedup: Speedup, *, base_ns: float, step_ns: float | None, startup_ns: float
) -> Trial:
    """Return a trial with what its runs have shown.

    Args:
        trial: What is known of it without them.
        speedup: A step before over a step with it.
        base_ns: A step before.
        step_ns: A step with it.
        startup_ns: How much later the first steady step begins.
    """
    return replace(
        trial,
        step_ns=step_ns,
        speedup=speedup.value,
        low=speedup.low,
        high=speedup.high,
        num_runs=speedup.num_pairs,
        startup_ns=startup_ns,
        pays_off_after_steps=pays_off_after(startup_ns, base_ns, speedup.value),
    )


class TrialLog:
    """Keeps one trial of each candidate, and the caveats on all of them."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}
        self._warnings: dict[str, Caveat] = {}
        self._load_fraction = 0.0

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate.name in self._trials

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Return what came of each candidate."""
        return tuple(self._trials.values())

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return what to know of the measurement."""
        busy = [busy_caveat(self._load_fraction)] if self._load_fraction >= BUSY_FRACTION else []
        return (*busy, *self._warnings.values())

    def add_untried(self, candidate: Candidate, outcome: Outcome, reason: str) -> None:
        """Note a candidate that was not measured, and why."""
        self._trials[candidate.name] = Trial(
            candidate=candidate.name,
            title=candidate.title,
            numerics=candidate.numerics,
            outcome=outcome,
            reason=reason,
        )

    def add(
        self, rival: CandidateRival, outcome: Outcome, reason: str, startup_ns: float = 0.0
    ) -> Trial:
        """Note a candidate that was measured, and return its trial."""
        self.add_untried(rival.candidate, outcome, reason)
        trial = self._trials[rival.candidate.name]
        if rival.num_pairs:
            trial = measured(
                trial,
                searched_speedup(rival),
                base_ns=median(run.step_ns for run in rival.base_runs),
                step_ns=rival.step_ns,
                startup_ns=startup_ns,
            )
            self._trials[trial.candidate] = trial
        return trial

    def forget(self, candidate: Candidate) -> None:
        """Forget a candidate that is tried again, so that it stands where it was tried last."""
        self._trials.pop(candidate.name, None)

    def change(self, trial: Trial, outcome: Outcome, reason: str) -> None:
        """Note that a candidate turned out otherwise in the end."""
        self._trials[trial.candidate] = replace(trial, outcome=outcome, reason=reason)
        self._warnings.pop(trial.candidate, None)

    def note_warnings(self, rival: CandidateRival) -> None:
        """Keep what Python warns of only with a candidate that is kept."""
        if warnings := rival.new_warnings:
            name = rival.candidate.name
            message = f"with {name} the script warns: {'; '.join(warnings)}"
            self._warnings[name] = Caveat(code="candidate-warns", message=message)

    def note_load(self, load_fraction: float) -> None:
        """Keep the largest share of the machine that other processes used."""
        self._load_fraction = max(self._load_fraction, load_fraction)


def busy_caveat(load_fraction: float) -> Caveat:
    """Return the caveat on runs that other work disturbed."""
    return Caveat(
        code=BUSY_MACHINE,
        message=f"other processes used {format_percent(load_fraction)} of this machine "
        "meanwhile: intervals are wider, and small gains may have been missed",
    )


# An interval wider than this says nothing that its ends would add to.
_TELLING_RANGE = 10.0


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
    """Return after how many steps a later start pays off."""
    pays = "never pays off"
    if after_steps is not None:
        pays = f"pays off after {after_steps:,} steps; this run has {length.num_steps:,}"
    later = format_duration(max(0.0, startup_ns), 2)
    return f"{short_text(speedup)}, but starts {later} later: {pays}"


def seconds_text(seconds: float) -> str:
    """Return ``12 s`` or ``1.5 min``, to two digits."""
    return format_duration(seconds * NS_PER_S, 2)
