"""Find the fastest combination of candidates, by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from breakeven.errors import BreakevenError
from breakeven.progress import Progress, SilentProgress
from breakeven.settings import Candidate, StepFacts
from breakeven.trace import Configuration
from breakeven.tune.budget import TimeBudget, TrialCosts
from breakeven.tune.kept import Kept, configuration_of, least_strict, why_not_added, without
from breakeven.tune.length import RunLength
from breakeven.tune.paired_runs import (
    BaseFailedError,
    CandidateRival,
    Decision,
    OneThread,
    PairedRuns,
    Rival,
    decide,
    fastest_first,
    run_base,
    samples_of,
    searched_speedup,
)
from breakeven.tune.search_result import (
    SearchResult,
    TrialLog,
    ratio_text,
    short_text,
    starts_too_late,
)
from breakeven.tune.trial_runs import RunResult, TrialRuns, failure_outcome, takes_too_much_memory
from breakeven.units import format_bytes
from breakeven.verdict import Numerics, Outcome, Trial

# Half of what issuing operators takes, and the rest of what a compiled step leaves of it.
_LEADING_GAIN = 0.45


def search(
    candidates: Sequence[Candidate],
    runs: TrialRuns,
    *,
    facts: StepFacts,
    budget: TimeBudget,
    length: RunLength,
    is_exact_only: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Add candidates one by one, the most promising first, as long as each makes a step faster.

    The most promising are those with the largest predicted gain for each second of their trial.
    What is kept is what further candidates are compared with. At the end each kept candidate must
    show once more that the step is slower without it.

    Args:
        candidates: What may be tried; of one family at most one is kept, except where another one
            builds on it.
        runs: Makes the runs.
        facts: Of the step, for preconditions and predictions.
        budget: Time for everything, confirmation included.
        length: Of the run that is tuned for; start-up is counted against its steps.
        is_exact_only: Leave out whatever may change one bit of the numbers.
        progress: Progress callback.

    Raises:
        BreakevenError: The script as it is fails.
    """
    progress = progress or SilentProgress()
    progress.begin("measuring the step as it is")
    try:
        baseline = run_base(runs, Configuration())
    except BaseFailedError as error:
        raise _baseline_error(error) from error
    state = _Search(runs, facts, budget, length, progress, baseline)
    return state.run(candidates, is_exact_only=is_exact_only)


def _baseline_error(error: BaseFailedError) -> BreakevenError:
    return BreakevenError(
        f"the script as it is fails now and then: {failure_outcome(error.failure)[1]}",
        hint="tuning repeats its first steps many times, each time in a new process; make sure "
        "that it does not depend on what an earlier run left behind",
    )


@dataclass
class _Search:
    """The state of a search: what is kept, what is left to try, what came of the rest."""

    runs: TrialRuns
    facts: StepFacts
    budget: TimeBudget
    length: RunLength
    progress: Progress
    baseline: RunResult

    def __post_init__(self) -> None:
        self._log = TrialLog()
        self._pending: list[Candidate] = []
        self._kept: list[Kept] = []
        self._costs = TrialCosts(self.facts, self.budget, self.baseline.wall_s)
        self._last: RunResult | None = self.baseline  # latest run of all, where it was the base's
        # Start-up of the base with nothing cached, where compiling is part of it.
        self._cold_ns: float | None = None
        self._one_thread = OneThread(self.runs)

    @property
    def _base(self) -> Configuration:
        """Return what is kept so far: candidates are compared with it."""
        return configuration_of(self._kept)

    def run(self, candidates: Sequence[Candidate], *, is_exact_only: bool) -> SearchResult:
        """Try everything, check again what is kept, and return what came of it."""
        for candidate in candidates:
            if is_exact_only and candidate.numerics is not Numerics.EXACT:
                reason = "may change bits of the numbers"
                self._log.add_untried(candidate, Outcome.NOT_APPLICABLE, reason)
            else:
                self._pending.append(candidate)
        while family := self._next_family():
            try:
                self._try_family(family)
            except BaseFailedError as error:
                self._give_up_last(error)
                self._pending += family
        self._recheck()
        return SearchResult(
            kept=tuple(self._kept),
            trials=self._log.trials,
            baseline=self.baseline,
            caveats=self._log.caveats,
        )

    def _next_family(self) -> list[Candidate]:
        """Return the applicable candidates of the most promising family; none at the end.

        What does not apply yet waits: another candidate may be its precondition.
        """
        ready: list[Candidate] = []
        for candidate in self._pending:
            reason = why_not_added(candidate, self._kept, self.facts)
            if reason is None:
                ready.append(candidate)
            elif candidate not in self._log:
                self._log.add_untried(candidate, Outcome.NOT_APPLICABLE, reason)
        if not ready:
            return []
        best = max(ready, key=self._rank)
        family = [each for each in ready if each.family == best.family]
        for candidate in family:
            self._pending.remove(candidate)
            self._log.forget(candidate)
        return family

    def _rank(self, candidate: Candidate) -> tuple[bool, bool, float]:
        """Return what a second spent on a candidate promises.

        Before all that comes a whole step as one call where that promises much, since most other
        settings change what it does without; and then what steadies runs.
        """
        gain = candidate.expected_gain(self.facts)
        leads = bool(candidate.changes.get("fast_step")) and gain >= _LEADING_GAIN
        is_first = self._steadies(candidate) and self._costs.is_cheap(candidate)
        return leads, is_first, self._costs.gain_per_s(candidate)

    def _try_family(self, family: Sequence[Candidate]) -> None:
        """Compare the candidates of a family with the base, and keep the fastest, if any."""
        planned_s = 0.0
        running: list[Candidate] = []
        for candidate in sorted(family, key=self._costs.gain_per_s, reverse=True):
            if self._is_worth_a_trial(candidate, planned_s):
                planned_s += self._costs.trial_s(candidate)
                running.append(candidate)
        if running:
            with self.budget.trial(lambda: len(self._kept)):
                self._compare(family, running, planned_s)

    def _compare(
        self, family: Sequence[Candidate], running: list[Candidate], planned_s: float
    ) -> None:
        """Run what is worth a trial of a family beside the base until it is decided."""
        self._one_thread.begin(running, self._base)
        rivals = racing = [self._rival(each) for each in running]
        names = ", ".join(each.name for each in running)
        self.progress.begin(f"trying {names}", planned_s)
        base = self._one_thread.applied(self._base)
        last = None if self._one_thread.is_on else self._last
        pairs = PairedRuns(self.runs, base, last, self._costs.longest_s)
        faster: list[CandidateRival] = []
        while racing := [each for each in racing if self._is_in_time(each)]:
            self._last = None  # also where the round is not completed
            self._last = pairs.round(racing)
            self._costs.note_runs(self._base, racing)
            racing = [each for each in racing if self._survives(each)]
            faster += [each for each in racing if self._decide(each) is Decision.FASTER]
            racing = [each for each in racing if each not in faster]
        on_one_thread = [each for each in rivals if self._is_one_thread(each)]
        kept = self._keep_best(fastest_first(family, faster))
        for rival in sorted(on_one_thread, key=lambda each: family.index(each.candidate)):
            self._one_thread.note_speed(searched_speedup(rival).value / kept)

    def _is_one_thread(self, rival: CandidateRival) -> bool:
        """Return whether a candidate has shown how fast the step is on one thread."""
        if rival.failure is not None or not rival.num_pairs:
            return False
        return self._steadies(rival.candidate) and not rival.finds_nothing(self._base)

    def _steadies(self, candidate: Candidate) -> bool:
        return self._one_thread.steadies(candidate.apply(self._base), self._base)

    def _decide(self, rival: CandidateRival) -> Decision:
        return decide(rival, wins_ties=self._steadies(rival.candidate))

    def _rival(self, candidate: Candidate) -> CandidateRival:
        configuration = candidate.apply(self._base)
        return CandidateRival(
            candidate=candidate,
            configuration=self._one_thread.applied(configuration),
            samples=samples_of(configuration) / samples_of(self._base),
            extra_s=candidate.expected_cost_s(self.facts),
        )

    def _is_worth_a_trial(self, candidate: Candidate, planned_s: float) -> bool:
        """Return whether a candidate may pay off, and be decided in time after what is planned."""
        if reason := self._costs.why_too_late(candidate, self.length, self.baseline.step_ns):
            self._log.add_untried(candidate, Outcome.NOT_WORTH_IT, reason)
        elif reason := self._costs.why_no_time(candidate, planned_s):
            self._log.add_untried(candidate, Outcome.OUT_OF_BUDGET, reason)
        return not reason

    def _is_in_time(self, rival: CandidateRival) -> bool:
        """Return whether there is time for one more pair; note where there is not."""
        if reason := self._costs.why_no_pair(rival):
            self._add(rival, Outcome.OUT_OF_BUDGET, reason)
        return not reason

    def _survives(self, rival: CandidateRival) -> bool:
        """Return whether a candidate is still in the race after a round; note why not."""
        if rival.failure is not None:
            self._add(rival, *failure_outcome(rival.failure))
            return False
        text = ratio_text(searched_speedup(rival))
        self.progress.detail(f"{rival.candidate.name}: {text}")
        self._log.note_load(rival.load_fraction)
        latest = rival.own_runs[-1]
        if rival.finds_nothing(self._one_thread.applied(self._base)):
            reason = "finds nothing to change in this script"
            self._add(rival, Outcome.NOT_APPLICABLE, reason)
        elif takes_too_much_memory(latest, self.baseline):
            reason = (
                f"takes {format_bytes(latest.peak_memory_bytes)} of memory, where the script as "
                f"it is takes {format_bytes(self.baseline.peak_memory_bytes)}"
            )
            self._add(rival, Outcome.OUT_OF_MEMORY, reason)
        elif self._decide(rival) is Decision.NOT_FASTER:
            reason = f"{text}: not shown to be faster"
            self._add(rival, Outcome.NOT_FASTER, reason)
        else:
            return True
        return False

    def _keep_best(self, faster: Sequence[CandidateRival]) -> float:
        """Keep the first that pays off and computes the right numbers; return its speedup, or 1."""
        winner: CandidateRival | None = None
        for rival in faster:
            if winner is not None:
                own, best = (short_text(searched_speedup(each)) for each in (rival, winner))
                reason = f"{own}: not as fast as {winner.candidate.name} ({best})"
                self._add(rival, Outcome.NOT_FASTER, reason)
            elif self._pays_off(rival) and self._is_right(rival):
                winner = rival
        if winner is None:
            return 1.0
        self._keep(winner)
        return searched_speedup(winner).value

    def _pays_off(self, rival: CandidateRival) -> bool:
        trial = self._add(rival, Outcome.NOT_WORTH_IT, "")
        after = trial.pays_off_after_steps
        if self._steadies(rival.candidate) or self.length.may_reach(after):
            return True
        speedup = searched_speedup(rival)
        reason = starts_too_late(speedup, trial.startup_ns, after, self.length)
        self._log.change(trial, Outcome.NOT_WORTH_IT, reason)
        return False

    def _is_right(self, rival: CandidateRival) -> bool:
        """Run the numerics gate: for what proved faster only, since it takes runs of its own."""
        if not self._costs.has_time_to_gate(rival):
            text = ratio_text(searched_speedup(rival))
            reason = f"{text}, but no time is left to compare its losses and gradients"
            self._add(rival, Outcome.OUT_OF_BUDGET, reason)
            return False
        candidate = rival.candidate
        self.progress.detail(f"{candidate.name}: comparing losses and gradients")
        self._last = None
        self._costs.note_gate()
        numerics = least_strict([*(each.candidate for each in self._kept), candidate])
        difference = self.runs.check_numbers(candidate.apply(self._base), numerics)
        if difference is not None:
            self._add(rival, Outcome.WRONG_NUMBERS, difference)
        return difference is None

    def _keep(self, rival: CandidateRival) -> None:
        trial = self._add(rival, Outcome.KEPT, ratio_text(searched_speedup(rival)))
        self._log.note_warnings(rival)
        if rival.extra_s > 0:
            self._cold_ns = rival.own_runs[0].startup_ns
        self._kept.append(Kept(rival.candidate, trial))
        self._note_base(rival.own_runs)
        for each in self._kept[:-1]:
            if without(self._kept, each, self.facts) == self._base:
                self._drop(each, Outcome.NOT_FASTER, f"{rival.candidate.name} does without")

    def _note_base(self, runs: Sequence[RunResult]) -> None:
        """Note runs of what is kept now, where that is something else than before."""
        if not self._one_thread.is_on:
            self._costs.base_s = min(run.wall_s for run in runs)
        self._last = None

    def _add(self, rival: CandidateRival, outcome: Outcome, reason: str) -> Trial:
        if not rival.num_pairs:
            return self._log.add(rival, outcome, reason)
        reason += " (both on one thread)" if self._one_thread.is_on else ""
        return self._log.add(rival, outcome, reason, self._startup_ns(rival))

    def _startup_ns(self, rival: Rival) -> float:
        """Return how much later a rival starts; what it compiles must be compiled anew."""
        before_ns = median(run.startup_ns for run in rival.base_runs)
        if rival.extra_s > 0:  # its first run alone found nothing cached
            return rival.own_runs[0].startup_ns - (self._cold_ns or before_ns)
        return median(run.startup_ns for run in rival.own_runs) - before_ns

    def _give_up_last(self, error: BaseFailedError) -> None:
        """Drop the candidate that was kept last, since what is kept has begun to fail."""
        if not self._kept:
            raise _baseline_error(error) from error
        last = self._kept[-1]
        outcome, reason = failure_outcome(error.failure)
        self._drop(last, outcome, f"failed in a later run: {reason}")
        self._last = None

    def _drop(self, kept: Kept, outcome: Outcome, reason: str) -> None:
        self._kept.remove(kept)
        self._log.change(kept.trial, outcome, reason)

    def _recheck(self) -> None:
        """Drop what the step is no slower without; the simpler configuration wins ties.

        The candidate that was added last was compared with just that, so it is not again.
        """
        for each in sorted(self._kept[:-1], key=lambda each: each.trial.speedup or 1.0):
            reduced = without(self._kept, each, self.facts)
            if reduced is not None and reduced != self._base:
                self._recheck_one(each, reduced)

    def _recheck_one(self, kept: Kept, reduced: Configuration) -> None:
        """Let the full configuration show again that it is faster than the reduced one."""
        name = kept.candidate.name
        self.progress.begin(f"checking {name} again, beside what was kept after it")
        self._one_thread.begin([kept.candidate], reduced)
        samples = samples_of(self._base) / samples_of(reduced)
        full = Rival(configuration=self._one_thread.applied(self._base), samples=samples)
        pairs = PairedRuns(self.runs, self._one_thread.applied(reduced))
        wins_ties = self._one_thread.steadies(self._base, reduced)
        while not full.num_pairs or decide(full, wins_ties=wins_ties) is Decision.UNDECIDED:
            if not self._costs.has_time_to_recheck():
                return
            try:
                pairs.round([full])
            except BaseFailedError:
                return  # without it the step fails, so it stays
            if full.failure is not None:
                return  # the confirmation will tell
            self._log.note_load(full.load_fraction)
            self.progress.detail(f"{name}: {ratio_text(searched_speedup(full))}")
        if decide(full, wins_ties=wins_ties) is Decision.NOT_FASTER:
            text = ratio_text(searched_speedup(full))
            self._drop(kept, Outcome.NOT_FASTER, f"{text} beside the others: no longer faster")
            if wins_ties:
                self._one_thread.note_speed(searched_speedup(full).value)
            self._note_base(full.base_runs)
