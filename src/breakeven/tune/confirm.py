"""Prove in fresh processes that the chosen configuration is faster, or drop it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from breakeven.capture import RunFailure
from breakeven.errors import Caveat, has_caveat
from breakeven.progress import Progress, SilentProgress
from breakeven.settings import StepFacts
from breakeven.timing import BUSY_FRACTION, BUSY_MACHINE, Speedup
from breakeven.trace import Configuration
from breakeven.tune.budget import CONFIRMING_PAIRS, MOST_CONFIRMING_PAIRS, TimeBudget
from breakeven.tune.kept import Kept, configuration_of, least_strict, without
from breakeven.tune.length import RunLength
from breakeven.tune.paired_runs import (
    WORTHWHILE,
    BaseFailedError,
    PairedRuns,
    Rival,
    is_hopeless,
    samples_of,
)
from breakeven.tune.search_result import (
    SearchResult,
    busy_caveat,
    pays_off_after,
    ratio_text,
    starts_too_late,
)
from breakeven.tune.trial_runs import TrialRuns, failure_outcome
from breakeven.verdict import Numerics, Outcome, Trial

# After so many pairs the interval is looked at. Two decide where runs are long and the gain is
# large; where there is time, the figure is made more certain than that.
_LOOKS = (CONFIRMING_PAIRS, 3, 4, 6, MOST_CONFIRMING_PAIRS)
_WANTED_PAIRS = 4
# Two attempts share the 5 % by which the answer may be wrong; the second is the rarer one.
_CONFIDENCES = (0.96, 0.99)


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that was shown to be faster, or the script as it is.

    Args:
        baseline_step_ns: Median step of the script as it is.
        tuned_step_ns: The same under the configuration, by the speedup.
        trials: Every candidate, with what became of it in the end.
        caveats: What to know of the measurement.
        configuration: Empty where nothing was confirmed.
        numerics: What it may do to the numbers.
        speedup: Over the script as it is, per sample, with at least 95 % confidence; exactly 1
            and of no pairs where nothing was confirmed.
        startup_ns: How much later it starts when nothing is cached.
        pays_off_after_steps: Steps after which that is earned back; None where nothing is kept.
    """

    baseline_step_ns: float
    tuned_step_ns: float
    trials: tuple[Trial, ...]
    caveats: tuple[Caveat, ...]
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
    """Compare what a search found with the script as it is, in runs that the search did not see.

    It stays only where it is 2 % faster or more with 95 % confidence. Otherwise the candidate
    that helped least is dropped and the rest gets a second attempt, if there is time; after that
    the script as it is wins.

    Args:
        found: What the search found.
        runs: Makes the runs.
        facts: Of the step.
        budget: Time for everything; the search has kept back what the first pairs need.
        length: Of the run that is tuned for.
        progress: Progress callback.
    """
    progress = progress or SilentProgress()
    kept = found.kept
    dropped: dict[str, tuple[Outcome, str]] = {}
    load_fraction = 0.0
    for confidence in _CONFIDENCES:
        if not kept:
            break
        configuration = configuration_of(kept)
        rival = Rival(configuration=configuration, samples=samples_of(configuration))
        progress.begin("confirming in fresh processes: " + _names(kept))
        outcome, reason = _attempt(rival, runs, budget, confidence, progress)
        load_fraction = max(load_fraction, rival.load_fraction)
        caveats = (*found.caveats, *_busy(found, load_fraction))
        if outcome is Outcome.KEPT:
            answer = _confirmed(found, kept, rival, confidence, dropped, caveats)
            after = answer.pays_off_after_steps
            if length.may_reach(after):
                return answer
            outcome = Outcome.NOT_WORTH_IT
            reason = starts_too_late(answer.speedup, answer.startup_ns, after, length)
        weakest, rest = _weakest(kept, facts, outcome)
        is_time_left = rival.num_pairs and budget.fits(CONFIRMING_PAIRS * rival.pair_s)
        if confidence == _CONFIDENCES[-1] or not rest.changes or not is_time_left:
            dropped |= {each.trial.candidate: (outcome, reason) for each in kept}
            break
        dropped[weakest.trial.candidate] = (outcome, reason)
        kept = tuple(each for each in kept if each is not weakest)
    return Confirmation(
        baseline_step_ns=found.baseline.step_ns,
        tuned_step_ns=found.baseline.step_ns,
        trials=_changed(found.trials, dropped),
        caveats=(*found.caveats, *_busy(found, load_fraction)),
    )


def _attempt(
    rival: Rival, runs: TrialRuns, budget: TimeBudget, confidence: float, progress: Progress
) -> tuple[Outcome, str]:
    """Run pairs until the interval decides; return KEPT, or why not."""
    pairs = PairedRuns(runs, Configuration())
    for look in _LOOKS:
        while rival.num_pairs < look:
            try:
                pairs.round([rival])
            except BaseFailedError as error:
                return Outcome.NOT_CONFIRMED, f"as it is, the script {_failure(error.failure)}"
            if rival.failure is not None:
                return Outcome.NOT_CONFIRMED, f"the configuration {_failure(rival.failure)}"
            progress.detail(ratio_text(_confirming_speedup(rival, confidence)))
        is_faster = _confirming_speedup(rival, confidence).low >= WORTHWHILE
        is_time_left = look < _LOOKS[-1] and budget.fits(_seconds_to_next_look(rival))
        if is_faster and (look >= _WANTED_PAIRS or not is_time_left):
            return Outcome.KEPT, ""
        if not is_time_left or is_hopeless(rival):
            break
    text = ratio_text(_confirming_speedup(rival, confidence))
    return Outcome.NOT_CONFIRMED, f"{text} in fresh processes: not shown to be 2 % faster"


def _seconds_to_next_look(rival: Rival) -> float:
    following = next(look for look in _LOOKS if look > rival.num_pairs)
    return (following - rival.num_pairs) * rival.pair_s


def _confirming_speedup(rival: Rival, confidence: float) -> Speedup:
    return rival.speedup(confidence, num_looks=len(_LOOKS))


def _failure(failure: RunFailure) -> str:
    return f"failed in a confirming run: {failure_outcome(failure)[1]}"


def _confirmed(
    found: SearchResult,
    kept: Sequence[Kept],
    rival: Rival,
    confidence: float,
    dropped: dict[str, tuple[Outcome, str]],
    caveats: tuple[Caveat, ...],
) -> Confirmation:
    speedup = _confirming_speedup(rival, confidence)
    base_ns = median(run.step_ns for run in rival.base_runs)
    later_ns = median(run.startup_ns for run in rival.own_runs) - median(
        run.startup_ns for run in rival.base_runs
    )
    # By now everything is compiled and cached; the search saw what it takes when it is not.
    cold_ns = sum(max(0.0, each.trial.startup_ns) for each in kept)
    startup_ns = max(later_ns, cold_ns)
    return Confirmation(
        configuration=rival.configuration,
        numerics=least_strict(each.candidate for each in kept),
        speedup=speedup,
        baseline_step_ns=base_ns,
        # Not the median of its runs: those that took turns are compared turn by turn.
        tuned_step_ns=base_ns * rival.samples / speedup.value,
        startup_ns=startup_ns,
        pays_off_after_steps=pays_off_after(startup_ns, base_ns, speedup.value),
        trials=_changed(found.trials, dropped),
        caveats=caveats,
    )


def _weakest(
    kept: Sequence[Kept], facts: StepFacts, outcome: Outcome
) -> tuple[Kept, Configuration]:
    """Return the candidate to drop, and the configuration without it.

    It is the one that helped least, or where the start takes too long, the one that delays it most.
    Others may build on a candidate, but nothing on the last one.
    """
    rests = [(each, without(kept, each, facts)) for each in kept]
    able = [(each, rest) for each, rest in rests if rest is not None]
    if outcome is Outcome.NOT_WORTH_IT:
        return max(able, key=lambda pair: pair[0].trial.startup_ns)
    return min(able, key=lambda pair: pair[0].trial.low or 0.0)


def _changed(trials: Sequence[Trial], dropped: dict[str, tuple[Outcome, str]]) -> tuple[Trial, ...]:
    """Return the trials with what the confirmation made of them."""
    return tuple(
        replace(trial, outcome=dropped[trial.candidate][0], reason=dropped[trial.candidate][1])
        if trial.candidate in dropped
        else trial
        for trial in trials
    )


def _busy(found: SearchResult, load_fraction: float) -> tuple[Caveat, ...]:
    """Return the caveat on load that the search had not met yet."""
    if load_fraction < BUSY_FRACTION or has_caveat(found.caveats, BUSY_MACHINE):
        return ()
    return (busy_caveat(load_fraction),)


def _names(kept: Sequence[Kept]) -> str:
    return ", ".join(each.candidate.name for each in kept)
