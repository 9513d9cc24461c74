"""The document of a tuning: the gain, the trials, and the next actions."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.report.document import Code, Document, Fact, Line, Section
from breakeven.report.run_text import busy_warnings, caveat_section, side_effect_facts
from breakeven.report.text import plural, printable, ratio_alone, ratio_with_interval, shorten
from breakeven.units import NS_PER_MS, format_duration
from breakeven.verdict import Numerics, Outcome, Trial, TuneReport

# Longer names overflow their column: they are rare, and figures stay close to short names.
_MAX_NAME_CHARACTERS = 28
# A smaller delay of the start is neither noticeable nor well measured.
_LEAST_STARTUP_NS = 10 * NS_PER_MS
# If the interval of the gain is wider than this factor, show its ends without a value.
_TELLING_RANGE = 4.0
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
_FAILED = {Outcome.WRONG_NUMBERS, Outcome.CRASHED, Outcome.TIME_LIMIT, Outcome.OUT_OF_MEMORY}
_NUMERICS_SENTENCES = {
    Numerics.EXACT: "Losses and gradients stay the same to the last bit.",
    Numerics.REORDERED: "Losses and gradients change by rounding alone: the same sums, in another "
    "order.",
    Numerics.LOWER_PRECISION: "Some of the arithmetic has fewer bits: losses and gradients change "
    "within the tolerance for that.",
    Numerics.TRAINING: "The training changes: results differ, so check their quality yourself.",
}


def tune_document(report: TuneReport) -> Document:
    """Return the document of a tuning."""
    has_gain = bool(report.configuration.changes)
    answers = [Line(headline(report), "bold green" if has_gain else "bold")]
    if has_gain:
        answers += map(Line, filter(None, (cost_sentence(report),)))
        answers.append(Line(_NUMERICS_SENTENCES[report.numerics]))
    machine = report.machine
    machine_parts = (
        printable(machine.gpu, 60),
        f"{printable(machine.processor, 60)}, {plural(machine.num_cores, 'core')}",
        f"torch {printable(machine.torch_version, 30)}",
        f"Python {printable(machine.python_version, 30)}",
        f"breakeven {printable(machine.breakeven_version, 30)}",
    )
    num_tried = sum(trial.outcome is not Outcome.NOT_APPLICABLE for trial in report.trials)
    target = (
        f"{shorten(printable(report.target, None), 60)} on the "
        f"{printable(report.device, 10).upper()}, {plural(num_tried, 'candidate')} in "
        f"{format_duration(report.duration_ns, 2)}, for a run of "
        f"{'' if report.is_length_known else 'at least '}{plural(report.num_steps, 'step')}"
    )
    return Document(
        title=f"What makes {printable(report.target, 120)} faster?",
        answers=answers,
        warnings=busy_warnings(report.caveats),
        facts=(
            Fact("target", target, is_bare=True),
            Fact("machine", " · ".join(filter(None, machine_parts)), is_bare=True),
            *side_effect_facts(report.writes),
        ),
        blocks=tuple(_sections(report)),
        command=report.command,
        interval_percent=95,
    )


def headline(report: TuneReport) -> str:
    """Return the answer in one sentence."""
    before = format_duration(report.baseline_step_ns)
    if report.configuration.changes and report.high > _TELLING_RANGE * report.low:
        gain = f"between {ratio_alone(report.low)} and {ratio_alone(report.high)}"
        is_busy = busy_warnings(report.caveats)
        why = "the machine is too busy" if is_busy else "runs differ too much"
        return f"Faster, but {why} to tell by how much: {gain}."
    if report.configuration.changes:
        ratio, _, interval = ratio_with_interval(report.speedup, report.low, report.high).partition(
            " "
        )
        interval = f" {interval}" if interval else ""
        after = format_duration(report.tuned_step_ns)
        return f"{ratio} faster{interval}: {after} a step instead of {before}."
    if report.is_undecided:
        return (
            "Undecided: nothing was shown to be faster than the unchanged script, "
            f"{before} a step, but some settings looked faster."
        )
    tried = [one for one in report.trials if one.outcome is not Outcome.NOT_APPLICABLE]
    if tried and all(one.step_ns is None and one.outcome is Outcome.OUT_OF_BUDGET for one in tried):
        return (
            "Undecided: the budget left no time to try anything. The script as it is takes "
            f"{before} a step."
        )
    return f"Nothing found that is faster than the script as it is: {before} a step."


def cost_sentence(report: TuneReport) -> str:
    """Return the start-up time that the settings add, and the steps until they pay off.

    Empty if the start-up is not longer.
    """
    startup_ns = sum(trial.startup_ns for trial in report.trials if trial.outcome is Outcome.KEPT)
    if startup_ns < _LEAST_STARTUP_NS:
        return ""
    later = f"A run begins {format_duration(startup_ns, 2)} later"
    if report.pays_off_after_steps is None:
        return f"{later}; breakeven cannot tell whether that pays off."
    return f"{later}, and {_pays_off_text(report.pays_off_after_steps, report)}."


def _pays_off_text(num_steps: int, report: TuneReport) -> str:
    """Return ``pays off after 3,100 steps; this run has 1,000``."""
    has = f"this run has {report.num_steps:,}"
    if not report.is_length_known:
        is_enough = report.num_steps >= num_steps
        has = f"{has} or more" if is_enough else "the length of this run is not known"
    return f"pays off after {plural(num_steps, 'step')}; {has}"


def _sections(report: TuneReport) -> Iterator[Section]:
    tried = [trial for trial in report.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    rows = [
        (
            printable(trial.candidate, 60),
            OUTCOME_WORDS[trial.outcome],
            "" if trial.step_ns is None else format_duration(trial.step_ns),
        )
        for trial in tried
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[Line] = []
    for trial, (name, outcome, step) in zip(tried, rows, strict=True):
        figures = f"  {step.rjust(widths[2])}  {trial_speedup(trial)}".rstrip()
        word = outcome.ljust(widths[1] if figures else 0)
        style = "green" if trial.outcome is Outcome.KEPT else "red" * (trial.outcome in _FAILED)
        name = name.ljust(min(widths[0], _MAX_NAME_CHARACTERS))
        lines.append(Line((f"{name}  ", (word, style), figures), indent=2))
        reason, num_steps = printable(trial.reason, 600), trial.pays_off_after_steps
        # The start-up decided this outcome.
        is_for_steps = trial.outcome is Outcome.NOT_WORTH_IT and "pays off" not in reason
        if num_steps is not None and is_for_steps:
            reason = f"{reason}; {_pays_off_text(num_steps, report)}"
        if reason:
            lines.append(Line(reason, "dim", 4))
    if lines:
        yield Section("Tried, in this order", lines)
    others = [
        Line((printable(one.candidate, 60), (f": {printable(one.reason, 600)}", "dim")), indent=2)
        for one in report.trials
        if one.outcome is Outcome.NOT_APPLICABLE
    ]
    if others:
        yield Section("Does not apply", others, is_list=True)
    settings = [
        Line(setting_text(name, value), indent=2)
        for name, value in report.configuration.changes.items()
    ]
    if settings:
        yield Section("Settings", settings, is_list=True)
    change = report.code_change
    if change is not None:
        per_call = f", {change.steps_per_call} steps a call" if change.steps_per_call > 1 else ""
        title = f"The loop as it runs then, in memory alone (breakeven.fast_step{per_call})"
        place = Line(f"{printable(change.file, 200)}:{change.line}", "dim", 2)
        yield Section(title, (place, Code(tuple(change.diff.removesuffix("\n").split("\n")))))
    yield from caveat_section(report.caveats, most=len(report.caveats))


def trial_speedup(trial: Trial) -> str:
    """Return ``1.84× (1.79–1.90×)``; empty if it was not measured."""
    if trial.speedup is None:
        return ""
    low = trial.speedup if trial.low is None else trial.low
    high = trial.speedup if trial.high is None else trial.high
    if high > _TELLING_RANGE * low:
        return f"{ratio_alone(low)} to {ratio_alone(high)}"
    return ratio_with_interval(trial.speedup, low, high)


def setting_text(name: str, value: bool | int | str) -> str:
    """Return one setting as written in ``breakeven.toml``: ``optimizer = "fused"``."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    return f"{name} = {value}" if isinstance(value, int) else f'{name} = "{printable(value, 60)}"'
