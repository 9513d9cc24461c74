"""The document of a tuning: the gain, what was tried, and what to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.report.builders.tune_words import (
    OUTCOME_STYLES,
    cost_sentence,
    headline,
    machine_line,
    numerics_sentence,
    outcome_word,
    setting_text,
    target_line,
    trial_reason,
    trial_speedup,
)
from breakeven.report.document import (
    Code,
    Document,
    Fact,
    Line,
    Lines,
    Medium,
    Section,
    Table,
    caveat_section,
    columns_of,
)
from breakeven.report.run_text import busy_warnings, held_caveats, side_effect_facts
from breakeven.report.text import printable
from breakeven.units import format_duration
from breakeven.verdict import CodeChange, Outcome, Trial, TuneReport

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
        lines = tuple(_trial_lines(tried, report.num_steps))
        yield Section(
            "Tried, in this order",
            (Lines(lines, only=Medium.TERMINAL), _trial_table(tried, report.num_steps)),
        )
    if others:
        lines = tuple(_other_line(trial, report.num_steps) for trial in others)
        yield Section("Does not apply", (Lines(lines, is_list=True),))


def _cells(trial: Trial) -> tuple[str, str, str, str]:
    step = "" if trial.step_ns is None else format_duration(trial.step_ns)
    return printable(trial.candidate, 60), outcome_word(trial), step, trial_speedup(trial)


def _trial_lines(trials: Sequence[Trial], num_steps: int) -> Iterator[Line]:
    """Yield name, outcome, step and speedup of each trial, and beneath why."""
    rows = [_cells(trial) for trial in trials]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], _MAX_NAME_CHARACTERS)
    for trial, (name, outcome, step, speedup) in zip(trials, rows, strict=True):
        style = OUTCOME_STYLES.get(trial.outcome, "")
        figures = f"  {step.rjust(widths[2])}  {speedup}".rstrip()
        yield Line(
            (
                f"{name.ljust(widths[0])}  ",
                (outcome.ljust(widths[1] if figures else 0), style),
                figures,
            ),
            indent=2,
        )
        reason = trial_reason(trial, num_steps)
        if reason:
            yield Line(reason, "dim", 4)


def _trial_table(trials: Sequence[Trial], num_steps: int) -> Table:
    headings = ("candidate", "outcome", "step", "speed (95 % interval)", "why")
    rows = [(*_cells(trial), trial_reason(trial, num_steps)) for trial in trials]
    return Table(
        columns_of(headings, rows, numbers="  nn"),
        "Each against the script with what was kept before it",
        marks=["chosen" if trial.outcome is Outcome.KEPT else "" for trial in trials],
        only=Medium.PAGE,
    )


def _other_line(trial: Trial, num_steps: int) -> Line:
    reason = trial_reason(trial, num_steps)
    return Line(
        (printable(trial.candidate, 60), (f": {reason}" if reason else "", "dim")), indent=2
    )


def _change_section(change: CodeChange) -> Section:
    per_call = f", {change.steps_per_call} steps a call" if change.steps_per_call > 1 else ""
    title = f"Faster still, with lines that only you can change (breakeven.fast_step{per_call})"
    place = Line(f"{printable(change.file, 200)}:{change.line}", "dim", 2)
    lines = tuple(change.diff.removesuffix("\n").split("\n"))
    return Section(title, (Lines((place,)), Code(lines)))
