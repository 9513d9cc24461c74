"""What came of each candidate, in the order in which they were tried."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.settings import Candidate
from breakeven.timing import BUSY_FRACTION, BUSY_MACHINE
from breakeven.tune.paired_runs import Rival
from breakeven.tune.search_result import pays_off_after
from breakeven.tune.stopping_rule import searched_speedup
from breakeven.units import format_percent
from breakeven.verdict import Outcome, Trial


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
        self,
        candidate: Candidate,
        rival: Rival,
        outcome: Outcome,
        reason: str,
        startup_ns: float = 0.0,
    ) -> Trial:
        """Note a candidate that was measured, and return its trial."""
        self.add_untried(candidate, outcome, reason)
        trial = self._trials[candidate.name]
        if rival.num_pairs:
            speedup = searched_speedup(rival)
            base_ns = median(run.step_ns for run in rival.base_runs)
            trial = replace(
                trial,
                step_ns=rival.step_ns,
                speedup=speedup.value,
                low=speedup.low,
                high=speedup.high,
                num_runs=speedup.num_pairs,
                startup_ns=startup_ns,
                pays_off_after_steps=pays_off_after(startup_ns, base_ns, speedup.value),
            )
            self._trials[candidate.name] = trial
        return trial

    def forget(self, candidate: Candidate) -> None:
        """Forget a candidate that is tried again, so that it stands where it was tried last."""
        self._trials.pop(candidate.name, None)

    def change(self, trial: Trial, outcome: Outcome, reason: str) -> None:
        """Note that a candidate turned out otherwise in the end."""
        self._trials[trial.candidate] = replace(trial, outcome=outcome, reason=reason)
        self._warnings.pop(trial.candidate, None)

    def note_warnings(self, candidate: Candidate, warnings: Sequence[str]) -> None:
        """Keep what Python warns of only with a candidate that is kept."""
        if warnings:
            message = f"with {candidate.name} the script warns: {'; '.join(warnings)}"
            self._warnings[candidate.name] = Caveat(code="candidate-warns", message=message)

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
