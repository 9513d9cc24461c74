"""A tuning for a person at a terminal: the gain, what was tried, and what to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from breakeven.report.check_text import busy_warnings
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.text import plural, printable
from breakeven.report.tune_text import (
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
from breakeven.timing import BUSY_MACHINE
from breakeven.units import format_duration
from breakeven.verdict import CodeChange, Outcome, Trial, TuneReport

_GAP = "  "
# Longer names go over the edge of their column: few are, and figures stay near short ones.
_MAX_NAME_CHARACTERS = 28
_MAX_DIFF_LINES = 80
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def render_tuning(report: TuneReport, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven tune`` found.
        console: Where to; its width, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    has_gain = bool(report.configuration.changes)
    _say(console, Text(headline(report), style="bold green" if has_gain else "bold"))
    for sentence in (cost_sentence(report), numerics_sentence(report)):
        if sentence:
            _say(console, Text(sentence))
    for warning in busy_warnings(report.caveats):
        _say(console, Text(warning, style="yellow"))
    console.line()
    effects = (f"{name}: {text}" for name, text in side_effect_lines(report))
    for fact in (target_line(report), machine_line(report), *effects):
        _say(console, Text(fact, style="dim"))
    _render_trials(report, console)
    _render_configuration(report, console)
    if report.code_change is not None:
        _render_change(report.code_change, console)
    _render_caveats(report, console)
    if hints:
        console.line()
    for hint in hints:
        _say(console, Text(printable(hint), style="dim"))


def _render_trials(report: TuneReport, console: Console) -> None:
    """Show what was tried with its figures, and below, in short, what does not apply here."""
    tried = [trial for trial in report.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    others = [trial for trial in report.trials if trial.outcome is Outcome.NOT_APPLICABLE]
    if tried:
        console.line()
        _say(console, Text("Tried, in this order", style="bold"))
    for trial, line in zip(tried, _trial_lines(tried), strict=True):
        _say(console, line, 2)
        reason = trial_reason(trial, report.num_steps)
        if reason:
            _say(console, Text(reason, style="dim"), 4)
    if others:
        console.line()
        _say(console, Text("Does not apply", style="bold"))
    for trial in others:
        reason = trial_reason(trial, report.num_steps)
        name = printable(trial.candidate, 60)
        _say(console, Text.assemble(name, (f": {reason}" if reason else "", "dim")), 2)


def _trial_lines(trials: Sequence[Trial]) -> Iterator[Text]:
    """Yield name, outcome, step and speedup of each trial, one below the other."""
    rows = [
        (
            printable(trial.candidate, 60),
            outcome_word(trial),
            "" if trial.step_ns is None else format_duration(trial.step_ns),
            trial_speedup(trial),
        )
        for trial in trials
    ]
    widths = [max((cell_len(row[column]) for row in rows), default=0) for column in range(4)]
    widths[0] = min(widths[0], _MAX_NAME_CHARACTERS)
    for trial, (name, outcome, step, speedup) in zip(trials, rows, strict=True):
        line = Text(_padded(name, widths[0]) + _GAP)
        line.append(_padded(outcome, widths[1]), OUTCOME_STYLES.get(trial.outcome, ""))
        line.append(_GAP + " " * (widths[2] - cell_len(step)) + step + _GAP + speedup)
        line.rstrip()
        yield line


def _padded(text: str, num_characters: int) -> str:
    return text + " " * (num_characters - cell_len(text))


def _render_configuration(report: TuneReport, console: Console) -> None:
    changes = report.configuration.changes
    if not changes:
        return
    console.line()
    _say(console, Text("Settings", style="bold"))
    for name, value in changes.items():
        _say(console, Text(setting_text(name, value)), 2)


def _render_change(change: CodeChange, console: Console) -> None:
    console.line()
    per_call = f", {change.steps_per_call} steps a call" if change.steps_per_call > 1 else ""
    title = f"Faster still, with lines that only you can change (breakeven.fast_step{per_call})"
    _say(console, Text(title, style="bold"))
    _say(console, Text(f"{printable(change.file, 200)}:{change.line}", style="dim"), 2)
    lines = change.diff.removesuffix("\n").split("\n")
    for line in lines[:_MAX_DIFF_LINES]:
        _say(console, Text(printable(line.expandtabs(), 500), _DIFF_STYLES.get(line[:1], "")), 2)
    num_hidden = len(lines) - _MAX_DIFF_LINES
    if num_hidden > 0:
        _say(console, Text(f"and {plural(num_hidden, 'more line')}", style="dim"), 2)


def _render_caveats(report: TuneReport, console: Console) -> None:
    # That of a busy machine may turn the answer: it stands beside that.
    caveats = [caveat for caveat in report.caveats if caveat.code != BUSY_MACHINE]
    if caveats:
        console.line()
        _say(console, Text("Caveats", style="bold"))
    for caveat in dict.fromkeys((caveat.code, caveat.message) for caveat in caveats):
        code, message = caveat
        text = Text.assemble((printable(code, 40), "yellow"), _GAP, printable(message, 600))
        _say(console, text, 2)


def _say(console: Console, text: Text, indent: int = 0) -> None:
    # A path longer than the line is cut at the line's end, not dropped.
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)
