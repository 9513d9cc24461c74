"""Try the script with its step as one compiled call, which takes a change of its lines."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from breakeven.capture import RunFailure, RunRequest, TargetKind
from breakeven.rewrite import NoPatch, SourcePatch, propose_fast_step
from breakeven.settings import StepFacts
from breakeven.settings.model_calls import compile_s, why_not_compiled
from breakeven.trace import Configuration
from breakeven.tune.budget import TimeBudget
from breakeven.tune.paired_runs import WORTHWHILE, Rival, is_hopeless
from breakeven.tune.search_result import measured
from breakeven.tune.trial_runs import ScriptRuns, failure_outcome
from breakeven.units import NS_PER_S, format_count, format_duration, format_ratio
from breakeven.verdict import CodeChange, Numerics, Outcome, Trial

_NAME = "fast-step"
_TITLE = "forward, backward and update as one compiled call"
_NUM_PAIRS = 4
# So many say something, where there is no time for more.
_FEWEST_PAIRS = 2
# What a run takes besides the start of the script: a process, and the steps.
_RUN_S = 1.5
# A compiled step saves most of what issuing its operators takes. Where that is this part of the
# step, no setting promises as much: its time is kept back from theirs, if that leaves them half.
_PROMISING_FRACTION = 0.5
_MOST_KEPT_BACK = 0.5


@dataclass(frozen=True, slots=True)
class CodeChangeTrial:
    """What came of it.

    Args:
        trial: For the report.
        change: The lines to change; None where they are not faster, or none could be found.
    """

    trial: Trial
    change: CodeChange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChangePlan:
    """A change that is worth a trial.

    Args:
        patch: The lines.
        pair_s: About how long a pair of runs takes, but for compiling.
        extra_s: By how many seconds it is predicted to start later.
        num_steps: Steps of the run that it is for.
        is_promising: Whether it is to be tried before the settings use up the time.
    """

    patch: SourcePatch
    pair_s: float
    extra_s: float
    num_steps: int
    is_promising: bool

    def kept_back_s(self, budget: TimeBudget) -> float:
        """Return the seconds that settings must leave to it."""
        needed_s = self.extra_s + _FEWEST_PAIRS * self.pair_s
        fits = needed_s <= _MOST_KEPT_BACK * budget.total_s
        return needed_s if self.is_promising and fits else 0.0

    def measured(
        self, runs: ScriptRuns, configuration: Configuration, budget: TimeBudget
    ) -> CodeChangeTrial:
        """Measure the script with the change and without it.

        The first call of a fast step holds its loss and update against those of the stock
        optimizer, and fails where they differ; so a wrong change is one that fails.

        Args:
            runs: Makes the runs.
            configuration: Under what the script runs, changed or not.
            budget: Time that is left.
        """
        measured = _measure(self, runs, configuration, budget)
        if not isinstance(measured, Rival):
            return _no(*measured)
        return _judged(self.patch, measured, self.num_steps)


def plan_code_change(
    request: RunRequest, facts: StepFacts, *, startup_s: float, num_steps: int, is_exact_only: bool
) -> CodeChangePlan | CodeChangeTrial:
    """Write ``breakeven.fast_step`` into the loop of a script, where that can be done and may pay.

    Args:
        request: How the script is run.
        facts: Of its step.
        startup_s: From the start of the script to its first step.
        num_steps: Steps of the run.
        is_exact_only: Whether not one bit may change.

    Returns:
        What to try, or why there is nothing.
    """
    reason = _why_not(request, facts, num_steps, is_exact_only=is_exact_only)
    if reason is not None:
        return _no(Outcome.NOT_APPLICABLE, reason)
    extra_s = compile_s(facts)
    all_steps_s = num_steps * facts.step_ns / NS_PER_S
    if extra_s > all_steps_s:
        return _no(
            Outcome.NOT_WORTH_IT,
            f"compiling takes some {format_duration(NS_PER_S * extra_s, 1)}, and all "
            f"{format_count(num_steps)} steps take "
            f"{format_duration(num_steps * facts.step_ns, 2)}",
        )
    patch = _propose(request)
    if isinstance(patch, NoPatch):
        return _no(Outcome.NOT_APPLICABLE, patch.reason)
    saved = min(1.0, facts.launch_fraction + facts.update_fraction)
    return CodeChangePlan(
        patch=patch,
        pair_s=2 * (startup_s + _RUN_S),
        extra_s=extra_s,
        num_steps=num_steps,
        is_promising=saved >= _PROMISING_FRACTION and extra_s <= saved * all_steps_s,
    )


def _why_not(
    request: RunRequest, facts: StepFacts, num_steps: int, *, is_exact_only: bool
) -> str | None:
    if is_exact_only:
        return "may change bits of the numbers"
    if request.target.kind is not TargetKind.SCRIPT:
        return "only the loop of a script can be changed"
    return why_not_compiled(facts)


def _propose(request: RunRequest) -> SourcePatch | NoPatch:
    path = Path(request.target.path)
    try:
        source = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        return NoPatch(reason=f"the script cannot be read as UTF-8: {error}")
    # `patch` refuses absolute names.
    shown = os.path.relpath(path)
    return propose_fast_step(source, file=shown)


def _measure(
    plan: CodeChangePlan, runs: ScriptRuns, configuration: Configuration, budget: TimeBudget
) -> Rival | tuple[Outcome, str]:
    text = plan.patch.text.encode()
    changed = Rival(configuration=configuration, extra_s=plan.extra_s)
    while changed.num_pairs < _NUM_PAIRS and not (changed.num_pairs and is_hopeless(changed)):
        needed_s = _next_pair_s(plan, changed)
        if not budget.fits(needed_s):
            if changed.num_pairs >= _FEWEST_PAIRS:
                break
            return (
                Outcome.OUT_OF_BUDGET,
                f"one more pair of runs would take {needed_s:.0f} s, and {budget.left_s:.0f} s of "
                f"{budget.total_s:.0f} s are left",
            )
        results = runs.measure_changed(
            text,
            configuration,
            is_changed_first=changed.num_pairs % 2 == 1,
            extra_s=plan.extra_s,
            longest_s=budget.left_s,
        )
        for result, known in zip(results, (changed.base_runs, changed.own_runs), strict=True):
            if isinstance(result, RunFailure):
                return failure_outcome(result)
            known.append(result)
    return changed


def _next_pair_s(plan: CodeChangePlan, changed: Rival) -> float:
    """Return how long the next pair takes: what the first one compiles is there for the others."""
    if not changed.num_pairs:
        return plan.pair_s + plan.extra_s
    compiling_ns = changed.own_runs[0].startup_ns - changed.base_runs[0].startup_ns
    is_second = changed.num_pairs == 1
    return changed.pair_s - (max(0.0, compiling_ns) / NS_PER_S if is_second else 0.0)


def _judged(patch: SourcePatch, rival: Rival, num_steps: int) -> CodeChangeTrial:
    speedup, stock, changed = rival.speedup(), rival.base_runs, rival.own_runs
    # The first run compiles; the later ones find what it left.
    startup_ns = max(0.0, changed[0].startup_ns - stock[0].startup_ns)
    step_ns = min(run.step_ns for run in changed)
    trial = measured(
        _no(Outcome.NOT_FASTER, "").trial,
        speedup,
        base_ns=step_ns * speedup.value,
        step_ns=step_ns,
        startup_ns=startup_ns,
    )
    after = trial.pays_off_after_steps
    is_faster = speedup.low >= WORTHWHILE
    is_paid = is_faster and after is not None and after <= num_steps
    text = (
        f"{format_ratio(speedup.value)} as fast ({format_ratio(speedup.low)} to "
        f"{format_ratio(speedup.high)}) on top of the configuration"
    )
    if is_paid:
        outcome, reason = Outcome.KEPT, f"{text}; the lines to change are shown, not changed"
    elif is_faster:
        outcome = Outcome.NOT_WORTH_IT
        reason = (
            f"{text}, but pays off after {format_count(after or 0)} steps; this run has "
            f"{format_count(num_steps)}"
        )
    else:
        outcome, reason = Outcome.NOT_FASTER, f"{text}: not shown to be faster"
    trial = replace(trial, outcome=outcome, reason=reason)
    return CodeChangeTrial(trial, patch.change if is_paid else None)


def _no(outcome: Outcome, reason: str) -> CodeChangeTrial:
    return CodeChangeTrial(
        Trial(
            candidate=_NAME,
            title=_TITLE,
            numerics=Numerics.REORDERED,
            outcome=outcome,
            reason=reason,
        )
    )
