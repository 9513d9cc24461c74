"""How much time tuning may still take, how long trials take, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from breakeven.settings import Candidate, StepFacts
from breakeven.trace import Configuration
from breakeven.tune.length import RunLength
from breakeven.tune.paired_runs import Rival, is_promising, searched_speedup
from breakeven.tune.search_result import ratio_text, seconds_text
from breakeven.units import NS_PER_S

# Of a budget, trials that bring nothing may take this part: those that promise most come first,
# and where they fail, the rest hardly helps.
_WASTED_FRACTION = 0.5
# Pairs that the confirmation takes at least, and at most; their time is kept back: of the most,
# as far as they take no larger part of the budget.
CONFIRMING_PAIRS = 2
MOST_CONFIRMING_PAIRS = 8
_CONFIRMING_FRACTION = 0.2
_CHEAP_FRACTION = 0.2
# Runs that a candidate needs at least to be decided, and the numerics gate; the first time that
# runs the script as it is twice besides.
_LEAST_TRIAL_RUNS = 4
# What promises this part of the step shows it in a pair, or is none of what it promises.
_RUNS_OF_OBVIOUS = 2
_OBVIOUS_GAIN = 0.6
# Settings hardly ever save more of a step: what takes longer than this to start will not pay.
_MOST_SAVED = 0.75
_GATE_RUNS = 1
_FIRST_GATE_RUNS = 3


class TimeBudget:
    """Seconds that all trials together may take, from creation on.

    Args:
        total_s: How many; at least 0.
        clock_s: Tells the time, in seconds.
    """

    def __init__(self, total_s: float, clock_s: Callable[[], float] = monotonic) -> None:
        if not total_s >= 0:
            raise ValueError(f"a budget of {total_s} s makes no sense")
        self.total_s = total_s
        self._clock_s = clock_s
        self._start_s = clock_s()
        self._wasted_s = 0.0
        self._trial_start_s: float | None = None

    @property
    def spent_s(self) -> float:
        """Return the seconds since creation."""
        return self._clock_s() - self._start_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.total_s - self.spent_s)

    def fits(self, needed_s: float) -> bool:
        """Return whether something that takes ``needed_s`` seconds would end in time."""
        return needed_s <= self.left_s

    @property
    def wasted_s(self) -> float:
        """Return the seconds of trials that brought nothing, and of the one that goes on."""
        running_s = 0.0 if self._trial_start_s is None else self._clock_s() - self._trial_start_s
        return self._wasted_s + running_s

    @property
    def left_to_waste_s(self) -> float:
        """Return the seconds that may still go into trials that bring nothing, at least 0."""
        return max(0.0, _WASTED_FRACTION * self.total_s - self.wasted_s)

    @contextmanager
    def trial(self, num_useful: Callable[[], int]) -> Iterator[None]:
        """Count what is done inside as wasted, unless it brings something.

        Args:
            num_useful: Tells how many useful things were found so far.
        """
        before = num_useful()
        self._trial_start_s = self._clock_s()
        try:
            yield
        finally:
            self._wasted_s = self._wasted_s if num_useful() > before else self.wasted_s
            self._trial_start_s = None


class TrialCosts:
    """Seconds that trials take, from runs made so far; the confirmation's are always kept back.

    Args:
        facts: Of the step, for what candidates are predicted to cost.
        budget: Time for everything.
        baseline_s: What a run of the script as it is takes.
    """

    def __init__(self, facts: StepFacts, budget: TimeBudget, baseline_s: float) -> None:
        self._facts = facts
        self._budget = budget
        self._baseline_s = baseline_s
        self._gate_runs = _FIRST_GATE_RUNS
        self.base_s = baseline_s  # what a run of the configuration takes that is kept so far

    def gain_per_s(self, candidate: Candidate) -> float:
        """Return what a second spent on a candidate promises, so that none eats all the time."""
        return candidate.expected_gain(self._facts) / self.trial_s(candidate)

    def trial_s(self, candidate: Candidate) -> float:
        """Return about how long it takes to decide a candidate and to check its numbers."""
        is_obvious = candidate.expected_gain(self._facts) >= _OBVIOUS_GAIN
        num_runs = (_RUNS_OF_OBVIOUS if is_obvious else _LEAST_TRIAL_RUNS) + self._gate_runs
        return candidate.expected_cost_s(self._facts) + num_runs * self.base_s

    def is_cheap(self, candidate: Candidate) -> bool:
        """Return whether a trial leaves most of the budget to others."""
        return self.trial_s(candidate) <= _CHEAP_FRACTION * self._budget.total_s

    def reserve_s(self, run_s: float) -> float:
        """Return what the confirmation needs of a configuration whose runs take ``run_s``."""
        pair_s = self._baseline_s + run_s
        wanted_s = min(MOST_CONFIRMING_PAIRS * pair_s, _CONFIRMING_FRACTION * self._budget.total_s)
        return max(CONFIRMING_PAIRS * pair_s, wanted_s)

    def longest_s(self) -> float:
        """Return the seconds after which a run would use up what the confirmation needs."""
        return self._budget.left_s - self.reserve_s(self.base_s)

    def why_too_late(self, candidate: Candidate, run: RunLength, step_ns: float) -> str | None:
        """Return why a candidate starts too late to pay off; None where it may.

        Args:
            candidate: Which.
            run: The run that is tuned for.
            step_ns: What each takes as it is.
        """
        extra_s = candidate.expected_cost_s(self._facts)
        all_steps_s = run.num_steps * step_ns / NS_PER_S
        if not run.is_known or extra_s <= _MOST_SAVED * all_steps_s:
            return None
        return (
            f"would start about {seconds_text(extra_s)} later, and all {run.num_steps:,} steps of "
            f"this run take {seconds_text(all_steps_s)}, of which it would have to save too much"
        )

    def why_no_time(self, candidate: Candidate, planned_s: float) -> str | None:
        """Return why a candidate cannot be tried in time; None where it can.

        Args:
            candidate: Which.
            planned_s: What others take before it, in seconds.
        """
        budget = self._budget
        needed_s = self.trial_s(candidate) + self.reserve_s(self.base_s)
        if not budget.fits(planned_s + needed_s):
            left_s = max(0.0, budget.left_s - planned_s)
            return (
                f"not tried: trial and confirmation need about {seconds_text(needed_s)}, and "
                f"{seconds_text(left_s)} of the budget of {seconds_text(budget.total_s)} are left "
                "for it"
            )
        pair_s = candidate.expected_cost_s(self._facts) + 2 * self.base_s
        # As long as nothing was wasted, even what takes most of the time is worth a trial.
        if budget.wasted_s and pair_s > budget.left_to_waste_s:
            return f"not tried: {self._why_no_waste(pair_s)}"
        return None

    def why_no_pair(self, rival: Rival) -> str | None:
        """Return why one more pair cannot be run in time; None where it can.

        The first was seen to fit when it was planned.
        """
        if not rival.own_runs:
            return None
        budget, text = self._budget, ratio_text(searched_speedup(rival))
        if not budget.fits(rival.pair_s + self.reserve_s(rival.own_s)):
            return f"{text}: not decided within the budget"
        if is_promising(rival) or rival.pair_s <= budget.left_to_waste_s:
            return None
        return f"{text}: not decided; {self._why_no_waste(rival.pair_s)}"

    def _why_no_waste(self, pair_s: float) -> str:
        """Return why nothing more is tried that may bring nothing, though there is time."""
        left_s = seconds_text(self._budget.left_to_waste_s)
        return (
            f"one more pair of runs takes about {seconds_text(pair_s)}; of the half of the budget "
            f"of {seconds_text(self._budget.total_s)} that trials without a gain may take, "
            f"{left_s} are left"
        )

    def has_time_to_recheck(self) -> bool:
        """Return whether one more pair of kept configurations fits."""
        return self._budget.fits(2 * self.base_s + self.reserve_s(self.base_s))

    def has_time_to_gate(self, rival: Rival) -> bool:
        """Return whether the numerics gate fits; it compiles anew what is compiled."""
        gate_s = rival.own_runs[0].wall_s + (self._gate_runs - 1) * self.base_s
        return self._budget.fits(gate_s + self.reserve_s(rival.own_s))

    def note_runs(self, base: Configuration, rivals: Sequence[Rival]) -> None:
        """Note what runs of the base have taken: those in turns go on for longer than others.

        Args:
            base: What is kept so far.
            rivals: What was compared with it.
        """
        longest_s = max((each.base_runs[-1].wall_s for each in rivals if each.base_runs), default=0)
        self.base_s = max(self.base_s, longest_s)
        if base == Configuration():
            self._baseline_s = max(self._baseline_s, longest_s)

    def note_gate(self) -> None:
        """Note that the gate knows the numbers of the script as it is from now on."""
        self._gate_runs = _GATE_RUNS
