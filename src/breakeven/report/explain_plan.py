"""One fix after another, at a terminal: the step on each device, and whether the verdict turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from breakeven.report.explain_text import choice_word, plan_sentence
from breakeven.report.result_table import device_label, glyphs_for, sort_results
from breakeven.report.text import printable, ratio_alone, shorten
from breakeven.timing import Source
from breakeven.units import format_duration
from breakeven.verdict import DeviceKind, DeviceResult, ExplainReport, PlanStep

_GAP = 2
_MAX_PLACE_CHARACTERS = 22
_MAX_DEVICE_CHARACTERS = 16
# Narrower, and the place of a fix would cut the figures.
_LEAST_PLACES_CHARACTERS = 72
_LEAST_RATIOS_CHARACTERS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColumn:
    """One device along the plan.

    Args:
        name: The device.
        kind: CPU or GPU.
        results: After each step; None where a step has no result for it.
    """

    name: str
    kind: DeviceKind
    results: tuple[DeviceResult | None, ...]

    def speedup(self, number: int) -> float | None:
        """Return how many times faster the step is than at first; None where it is the same."""
        first, now = self.results[0], self.results[number]
        if first is None or now is None or now.step_ns <= 0 or first.step_ns == now.step_ns:
            return None
        return first.step_ns / now.step_ns


def plan_columns(report: ExplainReport) -> tuple[PlanColumn, ...]:
    """Return the devices of a plan: the one that is explained, the CPU, then by their last step.

    A device keeps its column where it was measured at first and is predicted later, but a GPU
    that is here has two: its measured step, and the predictions.
    """
    first = report.plan[0].results
    order = sorted(
        sort_results(report.plan[-1].results),
        key=lambda result: (result.device != report.device, result.kind is not DeviceKind.CPU),
    )
    names = dict.fromkeys((result.kind, result.device) for result in (*order, *first))
    return tuple(
        PlanColumn(
            name=printable(device, 60),
            kind=kind,
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


def plan_block(report: ExplainReport, console: Console) -> Group:
    """Return the plan as a table with as many devices as fit, and what it comes to."""
    plan = report.plan
    columns = plan_columns(report)
    is_tiny = console.width < _LEAST_RATIOS_CHARACTERS
    is_narrow = console.width < _LEAST_PLACES_CHARACTERS
    labels = [step_label(step, number, has_place=not is_narrow) for number, step in enumerate(plan)]
    verdicts = [_verdict_cell(number, plan, is_short=is_tiny) for number in range(len(plan))]
    used = max(map(cell_len, labels)) + _GAP + max(cell.cell_len for cell in verdicts) + _GAP
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(
        "fixes" if is_narrow else "one fix after another", no_wrap=True, overflow="ellipsis"
    )
    cells: list[list[Text]] = []
    for column in columns:
        of_device = [_cell(column, number, console) for number in range(len(plan))]
        heading = _heading(column)
        width = max(cell_len(heading), *(cell.cell_len for cell in of_device))
        if cells and used + width + _GAP > console.width:
            break
        used += width + _GAP
        table.add_column(heading, justify="right", no_wrap=True)
        cells.append(of_device)
    table.add_column("verdict", no_wrap=True)
    for label, *row, verdict in zip(labels, *cells, verdicts, strict=True):
        table.add_row(Text(label), *row, verdict)
    sentences = [Text(plan_sentence(plan), overflow="fold")] if len(plan) > 1 else []
    notes = [_legend(console)]
    if len(cells) < len(columns):
        num_hidden = len(columns) - len(cells)
        devices = "device" if num_hidden == 1 else "devices"
        notes.append(f"{num_hidden} more {devices} in --json")
    title = Text(plan_title(plan), style="bold")
    return Group(title, table, *sentences, Text("   ".join(notes), style="dim", overflow="fold"))


def plan_title(plan: Sequence[PlanStep]) -> str:
    """Return what a plan shows; without a fix, it shows the devices."""
    return "What the fixes come to" if len(plan) > 1 else "The step on each device"


def step_label(step: PlanStep, number: int, *, has_place: bool = True) -> str:
    """Return ``2 SYNC001 train.py:61``, or without the place."""
    if not step.code:
        return "  as it is"
    line = "" if step.line is None else f":{step.line}"
    place = ""
    if has_place and step.file is not None:
        name = printable(step.file, None).replace("\\", "/").rpartition("/")[2]
        place = " " + shorten(name, max(_MAX_PLACE_CHARACTERS - len(line), 4)) + line
    return f"{number} {printable(step.code, 20)}{place}"


def _heading(column: PlanColumn) -> str:
    name = "this CPU" if _is_this_cpu(column) else column.name
    return shorten(name, _MAX_DEVICE_CHARACTERS)


def _is_this_cpu(column: PlanColumn) -> bool:
    first = column.results[0]
    return first is not None and device_label(first) == "this CPU"


def _cell(column: PlanColumn, number: int, console: Console) -> Text:
    result = column.results[number]
    if result is None:
        return Text("")
    if result.fits is False:
        return Text("too big", style="red")
    glyphs = glyphs_for(console)
    is_measured = result.source is Source.MEASURED
    text = Text.assemble(
        (glyphs.measured if is_measured else glyphs.predicted, "green" if is_measured else "blue"),
        f" {format_duration(result.step_ns)}",
    )
    speedup = column.speedup(number)
    if speedup is not None and console.width >= _LEAST_RATIOS_CHARACTERS:
        text.append(f" {ratio_alone(speedup)}", style="green" if speedup > 1 else "yellow")
    return text


def _verdict_cell(number: int, plan: Sequence[PlanStep], *, is_short: bool) -> Text:
    verdict = plan[number].verdict
    word = choice_word(verdict.choice)
    if verdict.is_settled:
        word = f"{word} {ratio_alone(verdict.speedup)}"
    turns = number > 0 and plan[number - 1].verdict.choice is not verdict.choice
    return Text(
        f"{word} (turns)" if turns and not is_short else word, style="bold green" if turns else ""
    )


def _legend(console: Console) -> str:
    glyphs = glyphs_for(console)
    return f"{glyphs.measured} measured   {glyphs.predicted} predicted   × as fast as it is"
