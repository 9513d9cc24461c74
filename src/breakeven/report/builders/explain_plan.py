"""The plan of an explanation: the step on each device after one fix after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.report.answer_text import verdict_sentence
from breakeven.report.document import Lines, Section
from breakeven.report.phrase import Line, Medium, Place
from breakeven.report.result_text import SOURCE_MARKS, device_label, sort_results
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

_MAX_PLACE_CHARACTERS = 30
_MAX_DEVICE_CHARACTERS = 16
# A terminal shows these: the device that is explained and the CPU; a page shows all.
_MAX_DEVICES = 2
_CHOICE_WORDS = {
    Choice.CPU: "CPU",
    Choice.GPU: "GPU",
    Choice.TOO_CLOSE: "too close",
    Choice.UNDECIDED: "undecided",
}


def plan_section(report: ExplainReport) -> Iterator[Section]:
    """Yield the plan in a sentence and a table, if there is one."""
    plan = report.plan
    if not plan:
        return
    turns = [
        number > 0 and plan[number - 1].verdict.choice is not step.verdict.choice
        for number, step in enumerate(plan)
    ]
    fixes = [_fix_cell(step, number) for number, step in enumerate(plan)]
    columns = [
        Column("one fix after another", fixes, page_header="fix", folds=True, least=18),
    ]
    # The device that is explained, the CPU, then by their last step. A device keeps its column if
    # it was measured at first and is predicted later.
    order = sorted(
        sort_results(plan[-1].results),
        key=lambda result: (result.device != report.device, result.kind is not DeviceKind.CPU),
    )
    devices = dict.fromkeys((one.kind, one.device) for one in (*order, *plan[0].results))
    for number, (kind, device) in enumerate(devices):
        results = [_result(step, kind, device) for step in plan]
        name = printable(device, 60)
        label = "" if results[0] is None else device_label(results[0])
        columns.append(
            Column(
                label if label.startswith("this CPU") else shorten(name, _MAX_DEVICE_CHARACTERS),
                [_result_cell(results[0], result) for result in results],
                page_header=name,
                is_number=True,
                only=None if number < _MAX_DEVICES else Medium.PAGE,
            )
        )
    columns.append(Column("verdict", list(map(_verdict_cell, plan, turns))))
    num_hidden = len(devices) - _MAX_DEVICES
    more = f"\n{plural(num_hidden, 'more device')} in --json" if num_hidden > 0 else ""
    table = Table(
        columns,
        caption="The step after one fix after another, and where to train then",
        note="Times without a remark are predicted; × is the speed against the step as it is.",
        legend=f"● measured   ○ predicted   × as fast as it is{more}",
        marks=["turns" if is_turn else "" for is_turn in turns],
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


def _result(step: PlanStep, kind: DeviceKind, device: str) -> DeviceResult | None:
    """Return a device's result, the predicted one if a GPU is measured too."""
    found = [one for one in step.results if one.kind is kind and one.device == device]
    if kind is DeviceKind.GPU:
        found.sort(key=lambda result: result.source is not Source.PREDICTED)
    return found[0] if found else None


def _fix_cell(step: PlanStep, number: int) -> Cell:
    """Return ``2 SYNC001 train.py:61``."""
    if not step.code:
        return Cell("  as it is", page="as it is")
    place = ""
    if step.file is not None:
        name = step.file.replace("\\", "/").rpartition("/")[2]
        place = " " + Place(file=name, line=step.line).text(_MAX_PLACE_CHARACTERS)
    return Cell(f"{number} {printable(step.code, 20)}{place}")


def _result_cell(first: DeviceResult | None, result: DeviceResult | None) -> AnyCell:
    """Return the time of a step, and how many times as fast as at first that is."""
    if result is None:
        return ""
    if result.fits is False:
        return Cell("too big", style="red", page="too big for its memory")
    ratio, colour = "", ""
    if first is not None and first.step_ns != result.step_ns > 0:
        speedup = first.step_ns / result.step_ns
        ratio, colour = f" {ratio_alone(speedup)}", "green" if speedup > 1 else "yellow"
    time = format_duration(result.step_ns)
    interval = duration_with_interval(result.step_ns, result.low_ns, result.high_ns)
    measured = " measured" if result.source is Source.MEASURED else ""
    return Cell(
        (SOURCE_MARKS[result.source], f" {time}", (ratio, colour)),
        page=f"{interval}{ratio}{measured}",
    )


def _verdict_cell(step: PlanStep, is_turn: bool) -> Cell:
    verdict = step.verdict
    word = page = _CHOICE_WORDS[verdict.choice]
    if verdict.is_settled:
        page = f"{word} {ratio_with_interval(verdict.speedup, verdict.low, verdict.high)}"
        word = f"{word} {ratio_alone(verdict.speedup)}"
    phrase = f"{word} (turns)" if is_turn else word
    return Cell(phrase, style="bold green" if is_turn else "", page=page)
