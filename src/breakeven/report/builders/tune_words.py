"""Words of a tuning: what was gained, what it costs, and what became of each candidate."""

from __future__ import annotations

from breakeven.report.text import plural, printable, ratio_with_interval, shorten
from breakeven.units import NS_PER_MS, format_duration
from breakeven.verdict import Numerics, Outcome, Trial, TuneReport

# A run that begins so much later is not felt, and not measured well either.
_LEAST_STARTUP_NS = 10 * NS_PER_MS
# The candidate that changes lines of the script.
_CODE_CHANGE = "fast-step"

OUTCOME_WORDS = {
    Outcome.KEPT: "kept",
    Outcome.NOT_FASTER: "not faster",
    Outcome.NOT_CONFIRMED: "not confirmed",
    Outcome.NOT_WORTH_IT: "not worth it",
    Outcome.NOT_APPLICABLE: "does not apply",
    Outcome.WRONG_NUMBERS: "wrong numbers",
    Outcome.CRASHED: "crashed",
    Outcome.TIME_LIMIT: "took too long",
    Outcome.OUT_OF_MEMORY: "out of memory",
    Outcome.OUT_OF_BUDGET: "no time left",
}
OUTCOME_STYLES = {
    Outcome.KEPT: "green",
    Outcome.WRONG_NUMBERS: "red",
    Outcome.CRASHED: "red",
    Outcome.TIME_LIMIT: "red",
    Outcome.OUT_OF_MEMORY: "red",
}
_NUMERICS_SENTENCES = {
    Numerics.EXACT: "Losses and gradients stay the same to the last bit.",
    Numerics.REORDERED: "Losses and gradients change by rounding alone: the same sums, in another "
    "order.",
    Numerics.LOWER_PRECISION: "Some of the arithmetic has fewer bits: losses and gradients change "
    "within the tolerance for that.",
    Numerics.TRAINING: "It is another training: results differ, and must be judged by themselves.",
}


def headline(report: TuneReport) -> str:
    """Return the answer in one sentence."""
    before = format_duration(report.baseline_step_ns)
    if not report.configuration.changes:
        if report.code_change is not None:
            as_it_is = f"No setting is faster than the script as it is: {before} a step"
            return f"{as_it_is}; a change of it is."
        if report.is_undecided:
            return (
                "Undecided: nothing was shown to be faster than the script as it is, "
                f"{before} a step, but not everything that looked faster could be decided."
            )
        return f"Nothing found that is faster than the script as it is: {before} a step."
    ratio, _, interval = ratio_with_interval(report.speedup, report.low, report.high).partition(" ")
    interval = f" {interval}" if interval else ""
    after = format_duration(report.tuned_step_ns)
    return f"{ratio} faster{interval}: {after} a step instead of {before}."


def target_line(report: TuneReport) -> str:
    """Return what was tuned, where, and for how long."""
    tried = [trial for trial in report.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    device = printable(report.device, 10).upper()
    return (
        f"{shorten(printable(report.target, None), 60)} on the {device}, "
        f"{plural(len(tried), 'candidate')} in {format_duration(report.duration_ns, 2)}, "
        f"for a run of {plural(report.num_steps, 'step')}"
    )


def machine_line(report: TuneReport) -> str:
    """Return the machine and the versions that the answer holds for."""
    machine = report.machine
    return " · ".join(
        [
            *([printable(machine.gpu, 60)] if machine.gpu else []),
            f"{printable(machine.processor, 60)}, {plural(machine.num_cores, 'core')}",
            f"torch {printable(machine.torch_version, 30)}",
            f"Python {printable(machine.python_version, 30)}",
            f"breakeven {printable(machine.breakeven_version, 30)}",
        ]
    )


def numerics_sentence(report: TuneReport) -> str:
    """Return what the configuration does to the numbers; nothing where there is none."""
    return _NUMERICS_SENTENCES[report.numerics] if report.configuration.changes else ""


def cost_sentence(report: TuneReport) -> str:
    """Return how much later a run begins, and from which step on that is earned back.

    Nothing where it begins as soon as before.
    """
    startup_ns = sum(
        trial.startup_ns
        for trial in report.trials
        if trial.outcome is Outcome.KEPT and not is_code_change(trial)
    )
    if not report.configuration.changes or startup_ns < _LEAST_STARTUP_NS:
        return ""
    later = f"A run begins {format_duration(startup_ns, 2)} later"
    if report.pays_off_after_steps is None:
        return f"{later}, which is not known to be earned back."
    return f"{later}, and {pays_off_text(report.pays_off_after_steps, report.num_steps)}."


def pays_off_text(num_steps: int, num_run_steps: int) -> str:
    """Return ``pays off after 3,100 steps; this run has 1,000``."""
    return f"pays off after {plural(num_steps, 'step')}; this run has {num_run_steps:,}"


def is_code_change(trial: Trial) -> bool:
    """Return whether a trial was of a changed script: no setting can bring what it gains."""
    return trial.candidate == _CODE_CHANGE


def outcome_word(trial: Trial) -> str:
    """Return what became of a candidate, as a person says it."""
    if is_code_change(trial) and trial.outcome is Outcome.KEPT:
        return "faster: see below"
    return OUTCOME_WORDS[trial.outcome]


def trial_reason(trial: Trial, num_run_steps: int) -> str:
    """Return why a candidate was kept or not, with the start-up that decided where it did."""
    reason = printable(trial.reason, 600)
    if trial.outcome is not Outcome.NOT_WORTH_IT or trial.pays_off_after_steps is None:
        return reason
    if "pays off" in reason:
        return reason
    return f"{reason}; {pays_off_text(trial.pays_off_after_steps, num_run_steps)}"


def trial_speedup(trial: Trial) -> str:
    """Return ``1.84× (1.79–1.90×)``; nothing where it was not measured."""
    if trial.speedup is None:
        return ""
    low = trial.speedup if trial.low is None else trial.low
    high = trial.speedup if trial.high is None else trial.high
    return ratio_with_interval(trial.speedup, low, high)


def setting_text(name: str, value: bool | int | str) -> str:
    """Return one setting as ``breakeven.toml`` has it: ``optimizer = "fused"``."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    return f"{name} = {value}" if isinstance(value, int) else f'{name} = "{printable(value, 60)}"'
