"""The document of a tuning: the gain, what was tried, and what to do with it."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.report.document import Code, Document, Lines, Section
from breakeven.report.phrase import Fact, Line, Medium
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    held_caveats,
    side_effect_facts,
)
from breakeven.report.table import Table, columns_of
from breakeven.report.text import plural, printable, ratio_with_interval, shorten
from breakeven.units import NS_PER_MS, format_duration
from breakeven.verdict import CodeChange, Numerics, Outcome, Trial, TuneReport

# Longer names go over the edge of their column: few are, and figures stay near short ones.
_MAX_NAME_CHARACTERS = 28


def tune_document(report: TuneReport) -> Document:
    """Return the document of a tuning."""
    has_gain = bool(report.configuration.changes)
    sentences = (cost_sentence(report), numerics_sentence(report))
    settings = [
        Line(setting_text(*pair), indent=2) for pair in report.configuration.changes.items()
    ]
    return Document(
        title=f"What makes {printable(report.target, 120)} faster?",
        answers=(
            Line(headline(report), "bold green" if has_gain else "bold"),
            *(Line(sentence) for sentence in sentences if sentence),
        ),
        warnings=busy_warnings(report.caveats),
        facts=(
            Fact("target", target_line(report), is_bare=True),
            Fact("machine", machine_line(report), is_bare=True),
            *side_effect_facts(report),
        ),
        blocks=(
            *_trial_sections(report),
            *([Section("Settings", (Lines(tuple(settings), is_list=True),))] if settings else []),
            *(() if report.code_change is None else (_change_section(report.code_change),)),
            *caveat_section(held_caveats(report.caveats, (), 0), most=len(report.caveats)),
        ),
        interval_percent=95,
    )


def _trial_sections(report: TuneReport) -> Iterator[Section]:
    """Yield what was tried with its figures, and below, in short, what does not apply here."""
    tried = [trial for trial in report.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    others = [trial for trial in report.trials if trial.outcome is Outcome.NOT_APPLICABLE]
    if tried:
        rows = [
            (
                printable(trial.candidate, 60),
                OUTCOME_WORDS[trial.outcome],
                "" if trial.step_ns is None else format_duration(trial.step_ns),
                trial_speedup(trial),
                _trial_reason(trial, report),
            )
            for trial in tried
        ]
        headings = ("candidate", "outcome", "step", "speed (95 % interval)", "why")
        table = Table(
            columns_of(headings, rows, numbers="  nn"),
            "Each against the script with what was kept before it",
            marks=["chosen" if trial.outcome is Outcome.KEPT else "" for trial in tried],
            only=Medium.PAGE,
        )
        # At a terminal the reason stands below the figures.
        widths = [max(map(len, column)) for column in zip(*(row[:3] for row in rows), strict=True)]
        widths[0] = min(widths[0], _MAX_NAME_CHARACTERS)
        lines: list[Line] = []
        for trial, (name, outcome, step, speedup, reason) in zip(tried, rows, strict=True):
            figures = f"  {step.rjust(widths[2])}  {speedup}".rstrip()
            word = outcome.ljust(widths[1] if figures else 0)
            style = OUTCOME_STYLES.get(trial.outcome, "")
            lines.append(Line((f"{name.ljust(widths[0])}  ", (word, style), figures), indent=2))
            if reason:
                lines.append(Line(reason, "dim", 4))
        blocks = (Lines(tuple(lines), only=Medium.TERMINAL), table)
        yield Section("Tried, in this order", blocks)
    if others:
        reasons = [_trial_reason(trial, report) for trial in others]
        lines = [
            Line((printable(one.candidate, 60), (f": {why}" if why else "", "dim")), indent=2)
            for one, why in zip(others, reasons, strict=True)
        ]
        yield Section("Does not apply", (Lines(tuple(lines), is_list=True),))


def _change_section(change: CodeChange) -> Section:
    per_call = f", {change.steps_per_call} steps a call" if change.steps_per_call > 1 else ""
    title = f"The loop as it runs then, in memory alone (breakeven.fast_step{per_call})"
    place = Line(f"{printable(change.file, 200)}:{change.line}", "dim", 2)
    lines = tuple(change.diff.removesuffix("\n").split("\n"))
    return Section(title, (Lines((place,)), Code(lines)))


# A run that begins so much later is not felt, and not measured well either.
_LEAST_STARTUP_NS = 10 * NS_PER_MS

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
        if report.is_undecided:
            return (
                "Undecided: nothing was shown to be faster than the script as it is, "
                f"{before} a step, but not everything that looked faster could be decided."
            )
        tried = [one for one in report.trials if one.outcome is not Outcome.NOT_APPLICABLE]
        if {one.outcome if one.step_ns is None else None for one in tried} == {
            Outcome.OUT_OF_BUDGET
        }:
            return (
                "Undecided: the budget left no time to try anything. The script as it is takes "
                f"{before} a step."
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
        f"for a run of {'' if report.is_length_known else 'at least '}"
        f"{plural(report.num_steps, 'step')}"
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
    startup_ns = sum(trial.startup_ns for trial in report.trials if trial.outcome is Outcome.KEPT)
    if not report.configuration.changes or startup_ns < _LEAST_STARTUP_NS:
        return ""
    later = f"A run begins {format_duration(startup_ns, 2)} later"
    if report.pays_off_after_steps is None:
        return f"{later}, which is not known to be earned back."
    return f"{later}, and {_pays_off_text(report.pays_off_after_steps, report)}."


def _pays_off_text(num_steps: int, report: TuneReport) -> str:
    """Return ``pays off after 3,100 steps; this run has 1,000``."""
    has = f"this run has {report.num_steps:,}"
    if not report.is_length_known:
        is_enough = report.num_steps >= num_steps
        has = f"this run has {report.num_steps:,} or more"
        has = has if is_enough else "the length of this run is not known"
    return f"pays off after {plural(num_steps, 'step')}; {has}"


def _trial_reason(trial: Trial, report: TuneReport) -> str:
    """Return why a candidate was kept or not, with the start-up that decided where it did."""
    reason, num_steps = printable(trial.reason, 600), trial.pays_off_after_steps
    is_for_steps = trial.outcome is Outcome.NOT_WORTH_IT and "pays off" not in reason
    if num_steps is None or not is_for_steps:
        return reason
    return f"{reason}; {_pays_off_text(num_steps, report)}"


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
