"""The plan of an explanation: the step on each device after one fix after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.report.document import Lines, Section
from breakeven.report.phrase import Line, Place
from breakeven.report.result_text import SOURCE_MARKS, device_label, sort_results
from breakeven.report.run_text import verdict_sentence
from breakeven.report.table import AnyCell, Cell, Column, Table
from breakeven.report.text import (
    duration_with_interval,
    plural,
    printable,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.timing import Source
from breakeven.units import format_duration
from breakeven.verdict import Choice, DeviceKind, DeviceResult, ExplainReport, PlanStep

_MAX_PLACE_CHARACTERS = 22
_MAX_DEVICE_CHARACTERS = 16
# Narrower, and the place of a fix would cut the figures.
_LEAST_PLACES_CHARACTERS = 72
_CHOICE_WORDS = {
    Choice.CPU: "CPU",
    Choice.GPU: "GPU",
    Choice.TOO_CLOSE: "too close",
    Choice.UNDECIDED: "undecided",
}


def plan_section(report: ExplainReport) -> Iterator[Section]:
    """Yield the plan in a sentence and a table, where there is one."""
    plan = report.plan
    if not plan:
        return
    turns = [
        number > 0 and plan[number - 1].verdict.choice is not step.verdict.choice
        for number, step in enumerate(plan)
    ]
    table = Table(
        (
            Column(
                "one fix after another",
                brief_header="fixes",
                page_header="fix",
                cells=[_step_cell(step, number) for number, step in enumerate(plan)],
            ),
            *(
                Column(
                    column.short_name,
                    page_header=column.name,
                    cells=[_result_cell(column, number) for number in range(len(plan))],
                    is_number=True,
                    is_across=True,
                )
                for column in _device_columns(report)
            ),
            Column("verdict", list(map(_verdict_cell, plan, turns))),
        ),
        caption="The step after one fix after another, and where to train then",
        note="Times without a remark are predicted; × is the speed against the step as it is.",
        legend="● measured   ○ predicted   × as fast as it is",
        marks=["turns" if is_turn else "" for is_turn in turns],
        indent=0,
        brief_below=_LEAST_PLACES_CHARACTERS,
        left_out=_left_out,
    )
    sentences = (Line(plan_sentence(plan)),) if len(plan) > 1 else ()
    title = "What the fixes come to" if len(plan) > 1 else "The step on each device"
    yield Section(title, (Lines(sentences), table))


def plan_sentence(plan: Sequence[PlanStep]) -> str:
    """Return whether the fixes of a plan turn the verdict, and from which on."""
    before, after = plan[0].verdict.choice, plan[-1].verdict.choice
    # By the results of the first step: there the CPU is the one that was measured, "this CPU".
    end = verdict_sentence(plan[-1].verdict, plan[0].results)
    fixes = len(plan) - 1
    if before is after:
        all_fixes = {1: "The fix does", 2: "Both fixes together do"}.get(
            fixes, f"All {fixes} fixes together do"
        )
        return f"{all_fixes} not turn the verdict. {end}"
    turned = next(
        number
        for number in range(1, len(plan))
        if all(step.verdict.choice is after for step in plan[number:])
    )
    first = "the first fix" if turned == 1 else f"the first {turned} fixes"
    return f"After {first} the verdict turns. {end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceColumn:
    """One device along the plan, with its result after each step; None where there is none."""

    name: str
    results: tuple[DeviceResult | None, ...]

    @property
    def short_name(self) -> str:
        first = self.results[0]
        label = "" if first is None else device_label(first)
        is_here = label.startswith("this CPU")
        return label if is_here else shorten(self.name, _MAX_DEVICE_CHARACTERS)

    def speedup(self, number: int) -> float | None:
        """Return how many times faster the step is than at first; None where it is the same."""
        first, now = self.results[0], self.results[number]
        if first is None or now is None or now.step_ns <= 0 or first.step_ns == now.step_ns:
            return None
        return first.step_ns / now.step_ns


def _device_columns(report: ExplainReport) -> tuple[_DeviceColumn, ...]:
    """Return the devices of a plan: the one that is explained, the CPU, then by their last step.

    A device keeps its column where it was measured at first and is predicted later, but a GPU
    that is here has two: its measured step, and the predictions.
    """
    order = sorted(
        sort_results(report.plan[-1].results),
        key=lambda result: (result.device != report.device, result.kind is not DeviceKind.CPU),
    )
    names = dict.fromkeys(
        (result.kind, result.device) for result in (*order, *report.plan[0].results)
    )
    return tuple(
        _DeviceColumn(
            name=printable(device, 60),
            results=tuple(_result(step, kind, device) for step in report.plan),
        )
        for kind, device in names
    )


def _result(step: PlanStep, kind: DeviceKind, device: str) -> DeviceResult | None:
    """Return a device's result, the predicted one where a GPU is measured too."""
    found = [one for one in step.results if one.kind is kind and one.device == device]
    if kind is DeviceKind.GPU:
        found.sort(key=lambda result: result.source is not Source.PREDICTED)
    return found[0] if found else None


def _step_cell(step: PlanStep, number: int) -> Cell:
    """Return ``2 SYNC001 train.py:61``, or in brief without the place."""
    if not step.code:
        return Cell("  as it is", page="as it is")
    label, place = f"{number} {printable(step.code, 20)}", ""
    if step.file is not None:
        name = step.file.replace("\\", "/").rpartition("/")[2]
        place = " " + Place(file=name, line=step.line).text(_MAX_PLACE_CHARACTERS)
    return Cell(label + place, brief=label)


def _result_cell(column: _DeviceColumn, number: int) -> AnyCell:
    result = column.results[number]
    if result is None:
        return ""
    if result.fits is False:
        return Cell("too big", style="red", page="too big for its memory")
    speedup = column.speedup(number)
    ratio = "" if speedup is None else f" {ratio_alone(speedup)}"
    colour = "green" if speedup is not None and speedup > 1 else "yellow"
    time = (SOURCE_MARKS[result.source], f" {format_duration(result.step_ns)}")
    interval = duration_with_interval(result.step_ns, result.low_ns, result.high_ns)
    measured = " measured" if result.source is Source.MEASURED else ""
    return Cell((*time, (ratio, colour)), brief=time, page=f"{interval}{ratio}{measured}")


def _verdict_cell(step: PlanStep, is_turn: bool) -> Cell:
    verdict = step.verdict
    word = page = _CHOICE_WORDS[verdict.choice]
    if verdict.is_settled:
        page = f"{word} {ratio_with_interval(verdict.speedup, verdict.low, verdict.high)}"
        word = f"{word} {ratio_alone(verdict.speedup)}"
    phrase = f"{word} (turns)" if is_turn else word
    return Cell(phrase, style="bold green" if is_turn else "", brief=word, page=page)


def _left_out(_shown: int, _rows: int, hidden: Sequence[str]) -> str:
    return f"{plural(len(hidden), 'more device')} in --json" if hidden else ""
