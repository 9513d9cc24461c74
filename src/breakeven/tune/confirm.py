"""Confirm in fresh processes that the chosen configuration is faster, or drop it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from breakeven.capture import RunFailure
from breakeven.errors import Caveat, has_caveat
from breakeven.progress import Progress, SilentProgress
from breakeven.settings import StepFacts
from breakeven.timing import BUSY_FRACTION, BUSY_MACHINE, Speedup
from breakeven.trace import Configuration
from breakeven.tune.budget import RunLength, TimeBudget
from breakeven.tune.comparison import WORTHWHILE, BaseFailedError, Comparison
from breakeven.tune.runs import TrialRuns, failure_outcome
from breakeven.tune.search import CONFIRMING_PAIRS, MOST_CONFIRMING_PAIRS
from breakeven.tune.search_result import (
    Kept,
    SearchResult,
    busy_caveat,
    configuration_of,
    least_strict,
    pays_off_after,
    ratio_text,
    starts_too_late,
    without,
)
from breakeven.verdict import Numerics, Outcome, Trial

# Check the interval after these numbers of pairs. Two pairs decide if runs are long and the gain is
# large; if time is left, more pairs narrow the figure.
_LOOKS = (CONFIRMING_PAIRS, 3, 4, 6, MOST_CONFIRMING_PAIRS)
_WANTED_PAIRS = 4
# On a busy machine, run further pairs until the interval is narrower than this factor.
_TELLING_RANGE = 2.0
# Two attempts share the 5 % error rate; the second attempt is rarer.
_CONFIDENCES = (0.96, 0.99)


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmed configuration, or the unchanged script.

    Args:
        baseline_step_ns: Median step time of the unchanged script.
        tuned_step_ns: Step time under the configuration, computed from the speedup.
        trials: Every candidate, with its final outcome.
        caveats: Caveats of the measurement.
        configuration: The configuration; empty if none was confirmed.
        numerics: Its possible effect on the numbers.
        speedup: Speedup over the unchanged script per sample, with at least 95 % confidence;
            exactly 1 and of no pairs if none was confirmed.
        startup_ns: Delay of its start when nothing is cached.
        pays_off_after_steps: Steps until that delay is recovered; None if nothing is kept.
    """

    baseline_step_ns: float
    tuned_step_ns: float
    trials: tuple[Trial, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    configuration: Configuration = Configuration()
    numerics: Numerics = Numerics.EXACT
    speedup: Speedup = Speedup(value=1.0, low=1.0, high=1.0, num_pairs=0)
    startup_ns: float = 0.0
    pays_off_after_steps: int | None = None


def confirm(
    found: SearchResult,
    runs: TrialRuns,
    *,
    facts: StepFacts,
    budget: TimeBudget,
    length: RunLength,
    progress: Progress | None = None,
) -> Confirmation:
    """Compare the result of a search with the unchanged script, in new runs.

    The configuration stays only if it is 2 % faster or more with 95 % confidence. Otherwise the
    weakest candidate is dropped and the rest gets a second attempt, if time is left. If that fails
    too, the unchanged script wins.

    Args:
        found: The result of the search.
        runs: Makes the runs.
        facts: Facts of the step.
        budget: Time for everything; the search has reserved time for the first pairs.
        length: Length of the run to tune for.
        progress: Progress callback.
    """
    progress = progress or SilentProgress()
    kept, trials = found.kept, {each.candidate: each for each in found.trials}
    load_fraction = 0.0
    winner: Confirmation | None = None
    for confidence in _CONFIDENCES if kept else ():
        names = ", ".join(each.candidate.name for each in kept)
        progress.begin(f"confirming in fresh processes: {names}")
        compared = Comparison(base=Configuration(), configuration=configuration_of(kept))
        outcome, reason = _attempt(compared, runs, budget, confidence, progress)
        load_fraction = max(load_fraction, compared.load_fraction)
        if outcome is Outcome.KEPT:
            winner = _winner(compared, kept, confidence)
            after = winner.pays_off_after_steps
            if length.may_reach(after):
                break
            outcome = Outcome.NOT_WORTH_IT
            reason = starts_too_late(winner.speedup, winner.startup_ns, after, length)
            winner = None
        # Later candidates may build on an earlier one, but none builds on the last. Drop the one
        # with the smallest gain; if the start takes too long, drop the one with the longest start.
        rests = [(each, without(kept, each, facts)) for each in kept]
        able = [(each, rest) for each, rest in rests if rest is not None]
        if outcome is Outcome.NOT_WORTH_IT:
            weakest, rest = max(able, key=lambda pair: pair[0].trial.startup_ns)
        else:
            weakest, rest = min(able, key=lambda pair: pair[0].trial.low or 0.0)
        is_time_left = compared.num_pairs and budget.fits(CONFIRMING_PAIRS * compared.pair_s)
        is_last = confidence == _CONFIDENCES[-1] or not rest.changes or not is_time_left
        for each in kept if is_last else (weakest,):
            name = each.trial.candidate
            trials[name] = replace(trials[name], outcome=outcome, reason=reason)
        if is_last:
            break
        kept = tuple(each for each in kept if each is not weakest)
    caveats = found.caveats
    if load_fraction >= BUSY_FRACTION and not has_caveat(caveats, BUSY_MACHINE):
        caveats = (*caveats, busy_caveat(load_fraction))
    if winner is None:
        baseline_ns = found.baseline.step_ns
        winner = Confirmation(baseline_step_ns=baseline_ns, tuned_step_ns=baseline_ns)
    return replace(winner, trials=tuple(trials.values()), caveats=caveats)


def _attempt(
    compared: Comparison, runs: TrialRuns, budget: TimeBudget, confidence: float, progress: Progress
) -> tuple[Outcome, str]:
    """Run pairs until the interval decides; return KEPT, or the outcome and its reason."""

    def why(failure: RunFailure) -> str:
        return f"failed in a confirming run: {failure_outcome(failure)[1]}"

    text = ""
    for look, following in zip(_LOOKS, (*_LOOKS[1:], 0), strict=True):
        while compared.num_pairs < look:
            try:
                compared.run_pair(runs)
            except BaseFailedError as error:
                return Outcome.NOT_CONFIRMED, f"as it is, the script {why(error.failure)}"
            if compared.failure is not None:
                return Outcome.NOT_CONFIRMED, f"the configuration {why(compared.failure)}"
            text = ratio_text(compared.speedup(confidence, num_looks=len(_LOOKS)))
            progress.detail(text)
        found = compared.speedup(confidence, num_looks=len(_LOOKS))
        is_time_left = following > 0 and budget.fits((following - look) * compared.pair_s)
        is_clear = look >= _WANTED_PAIRS and found.high <= _TELLING_RANGE * found.low
        if found.low >= WORTHWHILE and (is_clear or not is_time_left):
            return Outcome.KEPT, ""
        if not is_time_left or compared.is_hopeless():
            break
    return Outcome.NOT_CONFIRMED, f"{text} in fresh processes: not shown to be 2 % faster"


def _winner(compared: Comparison, kept: tuple[Kept, ...], confidence: float) -> Confirmation:
    """Return the confirmed configuration; the caller adds trials and caveats."""
    speedup = compared.speedup(confidence, num_looks=len(_LOOKS))
    base_ns = compared.base_step_ns
    # Everything is cached by now; take the start-up without a cache from the search.
    cold_ns = sum(max(0.0, each.trial.startup_ns) for each in kept)
    startup_ns = max(compared.later_ns, cold_ns)
    return Confirmation(
        configuration=compared.configuration,
        numerics=least_strict(each.candidate for each in kept),
        speedup=speedup,
        baseline_step_ns=base_ns,
        # Do not use the median of its runs: runs in turns are compared turn by turn.
        tuned_step_ns=base_ns * compared.samples / speedup.value,
        startup_ns=startup_ns,
        pays_off_after_steps=pays_off_after(startup_ns, base_ns, speedup.value),
    )
