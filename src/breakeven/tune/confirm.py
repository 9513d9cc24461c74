"""Confirm in fresh processes that the chosen configuration is faster, or drop it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from breakeven.capture import RunFailure
from breakeven.errors import Caveat, has_caveat
from breakeven.progress import Progress, SilentProgress
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
    least_strict,
    pays_off_after,
    ratio_text,
    starts_too_late,
)
from breakeven.verdict import Numerics, Outcome, Trial

# Check the interval after these numbers of pairs. Two pairs decide if runs are long and the gain is
# large; if time is left, more pairs narrow the figure.
_LOOKS = (CONFIRMING_PAIRS, 3, 4, 6, MOST_CONFIRMING_PAIRS)
_WANTED_PAIRS = 4
# On a busy machine, run further pairs until the interval is narrower than this factor.
_TELLING_RANGE = 2.0


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
    budget: TimeBudget,
    length: RunLength,
    progress: Progress | None = None,
) -> Confirmation:
    """Compare the result of a search with the unchanged script, in new runs.

    The configuration stays only if it is 2 % faster or more with 95 % confidence. Otherwise the
    unchanged script wins.

    Args:
        found: The result of the search.
        runs: Makes the runs.
        budget: Time for everything; the search has reserved time for the first pairs.
        length: Length of the run to tune for.
        progress: Progress callback.
    """
    baseline_ns, caveats = found.baseline.step_ns, found.caveats
    unchanged = Confirmation(
        baseline_step_ns=baseline_ns,
        tuned_step_ns=baseline_ns,
        trials=found.trials,
        caveats=caveats,
    )
    if not found.kept:
        return unchanged
    progress = progress or SilentProgress()
    names = [each.candidate.name for each in found.kept]
    progress.begin(f"confirming in fresh processes: {', '.join(names)}")
    compared = Comparison(base=Configuration(), configuration=found.configuration)
    outcome, reason = _outcome(compared, runs, budget, progress)
    if compared.load_fraction >= BUSY_FRACTION and not has_caveat(caveats, BUSY_MACHINE):
        caveats = (*caveats, busy_caveat(compared.load_fraction))
    if outcome is Outcome.KEPT:
        winner = _winner(compared, found.kept)
        after = winner.pays_off_after_steps
        if length.may_reach(after):
            return replace(winner, trials=found.trials, caveats=caveats)
        outcome = Outcome.NOT_WORTH_IT
        reason = starts_too_late(winner.speedup, winner.startup_ns, after, length)
    trials = tuple(
        replace(each, outcome=outcome, reason=reason) if each.candidate in names else each
        for each in found.trials
    )
    return replace(unchanged, trials=trials, caveats=caveats)


def _outcome(
    compared: Comparison, runs: TrialRuns, budget: TimeBudget, progress: Progress
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
            text = ratio_text(compared.speedup(num_looks=len(_LOOKS)))
            progress.detail(text)
        found = compared.speedup(num_looks=len(_LOOKS))
        is_time_left = following > 0 and budget.fits((following - look) * compared.pair_s)
        is_clear = look >= _WANTED_PAIRS and found.high <= _TELLING_RANGE * found.low
        if found.low >= WORTHWHILE and (is_clear or not is_time_left):
            return Outcome.KEPT, ""
        if not is_time_left or compared.is_hopeless():
            break
    return Outcome.NOT_CONFIRMED, f"{text} in fresh processes: not shown to be 2 % faster"


def _winner(compared: Comparison, kept: tuple[Kept, ...]) -> Confirmation:
    """Return the confirmed configuration; the caller adds trials and caveats."""
    speedup = compared.speedup(num_looks=len(_LOOKS))
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
