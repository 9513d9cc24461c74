"""Find the fastest combination of candidates, by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec.structs import replace

from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import Progress, SilentProgress
from breakeven.settings import Candidate, StepFacts
from breakeven.timing import BUSY_FRACTION, TurnKind
from breakeven.trace import Configuration
from breakeven.tune.budget import RunLength, TimeBudget
from breakeven.tune.comparison import (
    TIE,
    WORTHWHILE,
    BaseFailedError,
    CandidateComparison,
    Comparison,
    Decision,
    run_base,
)
from breakeven.tune.runs import RunResult, TrialRuns, failure_outcome
from breakeven.tune.search_result import (
    Kept,
    SearchResult,
    busy_caveat,
    configuration_of,
    least_strict,
    pays_off_after,
    ratio_text,
    short_text,
    starts_too_late,
    without,
)
from breakeven.units import NS_PER_S, format_bytes, format_duration
from breakeven.verdict import Numerics, Outcome, Trial

# Fewest and most pairs of the confirmation. The search reserves their time: for the most pairs, up
# to this share of the budget.
CONFIRMING_PAIRS = 2
MOST_CONFIRMING_PAIRS = 8
_CONFIRMING_FRACTION = 0.2
# Trials without a gain may use up this share of the budget: the most promising come first, and if
# they fail, the rest hardly helps.
_WASTED_FRACTION = 0.5
# Fewest runs that decide a candidate; two if it promises a large share of the step. The equivalence
# check takes one more; the first check also runs the unchanged script twice.
_LEAST_TRIAL_RUNS = 4
_RUNS_OF_OBVIOUS = 2
_OBVIOUS_GAIN = 0.6
_CHECK_RUNS = 1
_FIRST_CHECK_RUNS = 3
# Try a compiled step first if it promises half of the time spent issuing operators, and one thread
# if that is cheap.
_LEADING_GAIN = 0.45
_CHEAP_FRACTION = 0.2
# If one thread is slower than several by more than this, its step is not comparable.
_LEAST_SPEED = 0.5
# Settings hardly ever save more of a step; a start that takes longer than this will not pay off.
_MOST_SAVED = 0.75


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

    The most promising candidate has the largest predicted gain per second of its trial. Each trial
    compares a candidate with the configuration kept so far. At the end, each kept candidate must
    show again that the step is slower without it.

    Args:
        candidates: Candidates to try; at most one per family is kept, unless another builds on it.
        runs: Makes the runs.
        facts: Facts of the step, for preconditions and predictions.
        budget: Time for everything, confirmation included.
        length: Length of the run to tune for; start-up is weighed against its steps.
        is_exact_only: Leave out candidates that may change one bit of the numbers.
        progress: Progress callback.

    Raises:
        BreakevenError: If the unchanged script fails.
    """
    progress = progress or SilentProgress()
    progress.begin("measuring the step as it is")
    try:
        baseline = run_base(runs, Configuration())
        found = _Search(runs, facts, budget, length, progress, baseline)
        return found.run(candidates, is_exact_only=is_exact_only)
    except BaseFailedError as error:
        raise BreakevenError(
            f"the unchanged script fails in some runs: {failure_outcome(error.failure)[1]}",
            hint="tuning repeats its first steps many times, each in a new process; make sure that "
            "no run depends on an earlier one",
        ) from error


@dataclass
class _Search:
    """The state of a search: kept candidates, outcomes of the trials, and durations of runs."""

    runs: TrialRuns
    facts: StepFacts
    budget: TimeBudget
    length: RunLength
    progress: Progress
    baseline: RunResult
    kept: list[Kept] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)
    warnings: dict[str, Caveat] = field(default_factory=dict)
    load_fraction: float = 0.0
    wasted_s: float = 0.0
    family_start_s: float | None = None  # seconds spent before the family that runs; None if none
    check_runs: int = _FIRST_CHECK_RUNS
    one_thread_serves: bool = False  # one thread is fast enough to compare other settings on it
    cold_ns: float | None = None  # start-up of the base with an empty cache, if it compiles

    def __post_init__(self) -> None:
        # Seconds of a run of the unchanged script, and of the configuration kept so far.
        self.baseline_s = self.base_s = self.baseline.wall_s

    @property
    def base(self) -> Configuration:
        """The configuration kept so far; candidates are compared with it."""
        return configuration_of(self.kept)

    def run(self, candidates: Sequence[Candidate], *, is_exact_only: bool) -> SearchResult:
        """Try all candidates, check the kept ones again, and return the result."""
        pending: list[Candidate] = []
        for candidate in candidates:
            if is_exact_only and candidate.numerics is not Numerics.EXACT:
                self._note(candidate, Outcome.NOT_APPLICABLE, "may change bits of the numbers")
            else:
                pending.append(candidate)
        while family := self._next_family(pending):
            num_kept = len(self.kept)
            try:
                self._try_family(family)
            except BaseFailedError as error:
                if not self.kept:
                    raise
                outcome, reason = failure_outcome(error.failure)
                self._drop(self.kept[-1], outcome, f"failed in a later run: {reason}")
                pending += family
            if len(self.kept) <= num_kept:
                self.wasted_s += self._running_s()
            self.family_start_s = None
        # Skip the candidate added last: its trial made the same comparison.
        for each in sorted(self.kept[:-1], key=lambda each: each.trial.speedup or 1.0):
            reduced = without(self.kept, each, self.facts)
            if reduced is not None and reduced != self.base:
                self._recheck(each, reduced)
        is_busy = self.load_fraction >= BUSY_FRACTION
        return SearchResult(
            kept=tuple(self.kept),
            trials=tuple(self.trials.values()),
            baseline=self.baseline,
            caveats=(
                *([busy_caveat(self.load_fraction)] if is_busy else []),
                *self.warnings.values(),
            ),
        )

    def _next_family(self, pending: list[Candidate]) -> list[Candidate]:
        """Take the applicable candidates of the most promising family; none at the end.

        A candidate that does not apply yet waits: another one may satisfy its precondition.
        """
        ready: list[Candidate] = []
        for candidate in pending:
            reason = self._why_not_added(candidate)
            if reason is None:
                ready.append(candidate)
            elif candidate.name not in self.trials:
                self._note(candidate, Outcome.NOT_APPLICABLE, reason)

        def promise(candidate: Candidate) -> tuple[bool, bool, float]:
            gain = candidate.expected_gain(self.facts)
            # Try a compiled step first, since it does not use most other settings. Then try one
            # thread, since it steadies all further runs.
            leads = bool(candidate.changes.get("fast_step")) and gain >= _LEADING_GAIN
            is_cheap = self._trial_s(candidate) <= _CHEAP_FRACTION * self.budget.total_s
            steadies = self._is_steady(candidate.apply(self.base)) > self._is_steady(self.base)
            return leads, is_cheap and steadies, self._gain_per_s(candidate)

        if not ready:
            return []
        best = max(ready, key=promise)
        family = [each for each in ready if each.family == best.family]
        for candidate in family:
            pending.remove(candidate)
            self.trials.pop(candidate.name, None)
        return family

    def _why_not_added(self, candidate: Candidate) -> str | None:
        if reason := candidate.why_not(self.facts, self.base):
            return reason
        changed = candidate.apply(self.base)
        if changed == self.base:
            return "changes nothing that is not changed already"
        if any(getattr(changed, name) != value for name, value in self.base.changes.items()):
            for each in self.kept:
                if each.candidate.family == candidate.family:
                    return f"{each.candidate.name} is kept instead"
        return None

    def _is_steady(self, configuration: Configuration) -> bool:
        """Whether runs can take short turns, which needs one thread."""
        return self.runs.turns_with(configuration, configuration) is TurnKind.SHORT

    def _compare(
        self,
        candidate: Candidate,
        base: Configuration,
        configuration: Configuration,
        extra_s: float = 0.0,
    ) -> CandidateComparison:
        """Start a comparison of a configuration with a base.

        If only the configuration runs on one thread, it wins ties: all further runs on it vary
        less. If neither does, both are compared on one thread if that is fast enough, since gains
        on several threads are similar. The confirmation uses the chosen configuration's threads.
        """
        is_steady = self._is_steady(base)
        wins_ties = not is_steady and self._is_steady(configuration)
        both = [replace(one, num_threads=1) for one in (base, configuration)]
        on_one_thread = (
            self.one_thread_serves
            and base.num_threads == configuration.num_threads
            and not is_steady
            and all(map(self._is_steady, both))
        )
        return CandidateComparison(
            candidate=candidate,
            base=both[0] if on_one_thread else base,
            configuration=both[1] if on_one_thread else configuration,
            extra_s=extra_s,
            wins_ties=wins_ties,
            on_one_thread=on_one_thread,
        )

    def _gain_per_s(self, candidate: Candidate) -> float:
        return candidate.expected_gain(self.facts) / self._trial_s(candidate)

    def _trial_s(self, candidate: Candidate) -> float:
        """Return the estimated time to decide a candidate and check its numbers, in seconds."""
        is_obvious = candidate.expected_gain(self.facts) >= _OBVIOUS_GAIN
        num_runs = (_RUNS_OF_OBVIOUS if is_obvious else _LEAST_TRIAL_RUNS) + self.check_runs
        return candidate.expected_cost_s(self.facts) + num_runs * self.base_s

    def _reserve_s(self, run_s: float) -> float:
        """Return the time to reserve for confirming runs of ``run_s`` seconds each."""
        pair_s = self.baseline_s + run_s
        wanted_s = min(MOST_CONFIRMING_PAIRS * pair_s, _CONFIRMING_FRACTION * self.budget.total_s)
        return max(CONFIRMING_PAIRS * pair_s, wanted_s)

    def _try_family(self, family: Sequence[Candidate]) -> None:
        """Compare the candidates of a family with the base, and keep the fastest, if any."""
        planned_s = 0.0
        racing: list[CandidateComparison] = []
        for candidate in sorted(family, key=self._gain_per_s, reverse=True):
            if reason := self._why_too_late(candidate):
                self._note(candidate, Outcome.NOT_WORTH_IT, reason)
            elif reason := self._why_no_time(candidate, planned_s):
                self._note(candidate, Outcome.OUT_OF_BUDGET, reason)
            else:
                planned_s += self._trial_s(candidate)
                extra_s = candidate.expected_cost_s(self.facts)
                changed = candidate.apply(self.base)
                racing.append(self._compare(candidate, self.base, changed, extra_s))
        if not racing:
            return
        names = ", ".join(each.candidate.name for each in racing)
        self.progress.begin(f"trying {names}", planned_s)
        self.family_start_s = self.budget.spent_s
        faster: list[CandidateComparison] = []
        steadying: list[CandidateComparison] = []
        while racing:
            for each in tuple(racing):
                decision = self._run_pair(each)
                if decision is Decision.FASTER:
                    faster.append(each)
                if decision is not Decision.UNDECIDED:
                    racing.remove(each)
                    is_shown = each.failure is None and each.num_pairs and not each.finds_nothing
                    if each.wins_ties and is_shown:
                        steadying.append(each)
        # Among all that are as fast as the fastest, prefer the order of the list: simpler first.
        best = max((each.looks.value for each in faster), default=1.0)
        faster.sort(key=lambda each: family.index(each.candidate))
        faster.sort(key=lambda each: -min(each.looks.value, best / TIE))
        kept = self._keep_best(faster)
        for each in steadying:
            self.one_thread_serves = each.looks.value / kept >= _LEAST_SPEED

    def _why_too_late(self, candidate: Candidate) -> str | None:
        """Return why a candidate starts too late to pay off; None if it may."""
        extra_s = candidate.expected_cost_s(self.facts)
        all_steps_ns = self.length.num_steps * self.baseline.step_ns
        if not self.length.is_known or extra_s * NS_PER_S <= _MOST_SAVED * all_steps_ns:
            return None
        return (
            f"would start about {_seconds(extra_s)} later, too much to save again: all "
            f"{self.length.num_steps:,} steps of this run take {format_duration(all_steps_ns, 2)}"
        )

    def _why_no_time(self, candidate: Candidate, planned_s: float) -> str | None:
        """Return why the time left does not allow a candidate; None if it does."""
        budget, total = self.budget, _seconds(self.budget.total_s)
        needed_s = self._trial_s(candidate) + self._reserve_s(self.base_s)
        if not budget.fits(planned_s + needed_s):
            return (
                f"not tried: trial and confirmation need about {_seconds(needed_s)}, and "
                f"{_seconds(max(0.0, budget.left_s - planned_s))} of the budget of {total} are "
                "left for it"
            )
        pair_s = candidate.expected_cost_s(self.facts) + 2 * self.base_s
        # Until time has been wasted, even a trial that takes most of the budget is allowed.
        if self.wasted_s and (reason := self._why_no_waste(pair_s, self.wasted_s)):
            return f"not tried: {reason}"
        return None

    def _running_s(self) -> float:
        """Return the seconds that the family being run has taken; 0 without one."""
        return 0.0 if self.family_start_s is None else self.budget.spent_s - self.family_start_s

    def _why_no_waste(self, pair_s: float, wasted_s: float) -> str | None:
        """Return why a pair is not run that may bring no gain; None if it is."""
        may_waste_s = max(0.0, _WASTED_FRACTION * self.budget.total_s - wasted_s)
        if pair_s <= may_waste_s:
            return None
        return (
            f"one more pair of runs takes about {_seconds(pair_s)}; of the half of the budget of "
            f"{_seconds(self.budget.total_s)} that trials without a gain may take, "
            f"{_seconds(may_waste_s)} are left"
        )

    def _run_pair(self, each: CandidateComparison) -> Decision:
        """Run a candidate and the base once more and decide; note why it is not faster."""
        candidate = each.candidate
        # The plan has checked that the first pair fits.
        if each.own_runs and not self.budget.fits(each.pair_s + self._reserve_s(each.own_s)):
            text = ratio_text(each.looks)
            self._note(
                candidate, Outcome.OUT_OF_BUDGET, f"{text}: not decided within the budget", each
            )
            return Decision.NOT_FASTER
        is_promising = each.num_pairs and each.speedup().value >= WORTHWHILE
        reason = None
        if each.own_runs and not is_promising:
            reason = self._why_no_waste(each.pair_s, self.wasted_s + self._running_s())
        if reason:
            text = f"{ratio_text(each.looks)}: not decided; {reason}"
            self._note(candidate, Outcome.OUT_OF_BUDGET, text, each)
            return Decision.NOT_FASTER
        each.run_pair(self.runs, self.budget.left_s - self._reserve_s(self.base_s))
        if each.failure is not None:
            self._note(candidate, *failure_outcome(each.failure), each)
            return Decision.NOT_FASTER
        text, latest = ratio_text(each.looks), each.own_runs[-1]
        self.progress.detail(f"{candidate.name}: {text}")
        self.load_fraction = max(self.load_fraction, each.load_fraction)
        # Runs in turns take longer than others.
        self.base_s = max(self.base_s, each.base_runs[-1].wall_s)
        if not self.kept:
            self.baseline_s = self.base_s
        decision = each.decide()
        if each.finds_nothing:
            reason = "finds nothing to change in this script"
            self._note(candidate, Outcome.NOT_APPLICABLE, reason, each)
        elif latest.takes_too_much_memory(self.baseline):
            reason = (
                f"takes {format_bytes(latest.peak_memory_bytes)} of memory; the unchanged script "
                f"takes {format_bytes(self.baseline.peak_memory_bytes)}"
            )
            self._note(candidate, Outcome.OUT_OF_MEMORY, reason, each)
        elif decision is Decision.NOT_FASTER:
            self._note(candidate, Outcome.NOT_FASTER, f"{text}: not shown to be faster", each)
        else:
            return decision
        return Decision.NOT_FASTER

    def _keep_best(self, faster: Sequence[CandidateComparison]) -> float:
        """Keep the first that pays off and computes the right numbers; return its speedup, or 1."""
        winner: CandidateComparison | None = None
        for each in faster:
            if winner is not None:
                own, best = short_text(each.looks), short_text(winner.looks)
                reason = f"{own}: not as fast as {winner.candidate.name} ({best})"
                self._note(each.candidate, Outcome.NOT_FASTER, reason, each)
            elif self._pays_off(each) and self._is_right(each):
                winner = each
        if winner is None:
            return 1.0
        candidate = winner.candidate
        trial = self._note(candidate, Outcome.KEPT, ratio_text(winner.looks), winner)
        if warnings := winner.new_warnings:
            message = f"with {candidate.name} the script warns: {'; '.join(warnings)}"
            self.warnings[candidate.name] = Caveat(code="candidate-warns", message=message)
        if winner.extra_s > 0:
            self.cold_ns = winner.own_runs[0].startup_ns
        self.kept.append(Kept(candidate, trial))
        if not winner.on_one_thread:
            self.base_s = winner.own_s
        for each in self.kept[:-1]:
            if without(self.kept, each, self.facts) == self.base:
                self._drop(each, Outcome.NOT_FASTER, f"{candidate.name} does without")
        return winner.looks.value

    def _pays_off(self, each: CandidateComparison) -> bool:
        trial = self._note(each.candidate, Outcome.NOT_WORTH_IT, "", each)
        after = trial.pays_off_after_steps
        if each.wins_ties or self.length.may_reach(after):
            return True
        reason = starts_too_late(each.looks, trial.startup_ns, after, self.length)
        self._note(each.candidate, Outcome.NOT_WORTH_IT, reason, each)
        return False

    def _is_right(self, each: CandidateComparison) -> bool:
        """Check the numbers; only for a faster candidate, since the check takes extra runs."""
        candidate = each.candidate
        # The check compiles again.
        check_s = each.own_runs[0].wall_s + (self.check_runs - 1) * self.base_s
        if not self.budget.fits(check_s + self._reserve_s(each.own_s)):
            text = ratio_text(each.looks)
            reason = f"{text}, but no time is left to compare its losses and gradients"
            self._note(candidate, Outcome.OUT_OF_BUDGET, reason, each)
            return False
        self.progress.detail(f"{candidate.name}: comparing losses and gradients")
        self.check_runs = _CHECK_RUNS
        numerics = least_strict([*(one.candidate for one in self.kept), candidate])
        difference = self.runs.check_numbers(candidate.apply(self.base), numerics)
        if difference is not None:
            self._note(candidate, Outcome.WRONG_NUMBERS, difference, each)
        return difference is None

    def _note(
        self,
        candidate: Candidate,
        outcome: Outcome,
        reason: str,
        measured: Comparison | None = None,
    ) -> Trial:
        """Record the outcome of a candidate, with the results of its runs if it has run."""
        trial = Trial(
            candidate=candidate.name,
            title=candidate.title,
            numerics=candidate.numerics,
            outcome=outcome,
            reason=reason,
        )
        if measured is not None and measured.num_pairs:
            speedup, startup_ns = measured.looks, measured.later_ns
            suffix = " (both on one thread)" if measured.on_one_thread else ""
            if measured.extra_s > 0:  # only its first run started with an empty cache
                base_ns = median(run.startup_ns for run in measured.base_runs)
                startup_ns = measured.own_runs[0].startup_ns - (self.cold_ns or base_ns)
            trial = replace(
                trial,
                reason=f"{reason}{suffix}",
                step_ns=median(run.step_ns for run in measured.own_runs),
                speedup=speedup.value,
                low=speedup.low,
                high=speedup.high,
                num_runs=speedup.num_pairs,
                startup_ns=startup_ns,
                pays_off_after_steps=pays_off_after(
                    startup_ns, measured.base_step_ns, speedup.value
                ),
            )
        self.trials[candidate.name] = trial
        return trial

    def _drop(self, kept: Kept, outcome: Outcome, reason: str) -> None:
        name = kept.candidate.name
        self.kept.remove(kept)
        self.trials[name] = replace(kept.trial, outcome=outcome, reason=reason)
        self.warnings.pop(name, None)

    def _recheck(self, kept: Kept, reduced: Configuration) -> None:
        """Drop a candidate unless the step is slower without it; ties drop it too."""
        name = kept.candidate.name
        self.progress.begin(f"checking {name} again, with the settings kept after it")
        full = self._compare(kept.candidate, reduced, self.base)
        decision = Decision.UNDECIDED
        while decision is Decision.UNDECIDED:
            if not self.budget.fits(2 * self.base_s + self._reserve_s(self.base_s)):
                return
            try:
                full.run_pair(self.runs)
            except BaseFailedError:
                return  # the step fails without the candidate, so it stays
            if full.failure is not None:
                return  # the confirmation will show it
            self.load_fraction = max(self.load_fraction, full.load_fraction)
            self.progress.detail(f"{name}: {ratio_text(full.looks)}")
            decision = full.decide()
        if decision is Decision.NOT_FASTER:
            text = ratio_text(full.looks)
            self._drop(kept, Outcome.NOT_FASTER, f"{text} with other settings: no longer faster")
            if full.wins_ties:
                self.one_thread_serves = full.looks.value >= _LEAST_SPEED
            if not full.on_one_thread:
                self.base_s = min(run.wall_s for run in full.base_runs)


def _seconds(seconds: float) -> str:
    return format_duration(seconds * NS_PER_S, 2)
