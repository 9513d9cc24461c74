"""Where the curves of a sweep cross, in words and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from rich.console import Console
from rich.table import Table
from rich.text import Text

from breakeven.report.chart_build import axis_word, crossover_interval, value_text
from breakeven.report.text import printable, shorten
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisValue,
    Crossover,
    DeviceKind,
    NoCrossover,
    SweepCrossover,
    SweepReport,
)

_INDENT = 2
_GAP = 2
_MAX_NAME_CHARACTERS = 24
_MAX_HELD_CHARACTERS = 14
_MAX_ROWS = 12
# Axes whose values are counts of something: "2 threads", but "batch size 64".
_COUNTED: Mapping[str, str] = {
    NUM_PARAMETERS: "parameters",
    "threads": "threads",
    "num_devices": "GPUs",
}


def headline(report: SweepReport) -> str:
    """Return the answer along the first axis in one sentence."""
    if not report.points:
        return "No point of the grid gave an answer."
    axis = report.axes[0].name
    along = [crossover for crossover in report.crossovers if crossover.outcome.axis == axis]
    if not along:
        return _fastest_sentence(report)
    num_settings = len(_held_settings(along))
    if num_settings > 1:
        return _many_settings_sentence(along, num_settings)
    always = [c for c in along if _is_always_faster(c)]
    starts = [c for c in along if isinstance(c.outcome, Crossover)]
    word = _word(axis)
    if always:
        names = _names([crossover.device for crossover in always])
        return f"A GPU pays off at every {word} searched{_range(always[0])}: {names}."
    if starts:
        first = min(starts, key=_start)
        place = _from_on(first.outcome) if isinstance(first.outcome, Crossover) else ""
        return f"A GPU pays off {place}: {printable(first.device, 60)}."
    if all(_is_never_faster(crossover) for crossover in along):
        return f"No GPU pays off at any {word} searched{_range(along[0])}."
    return f"From no {word} searched on does a GPU pay off for good{_range(along[0])}."


def crossover_groups(report: SweepReport) -> list[list[SweepCrossover]]:
    """Return the crossovers by axis: the first axis first, the number of parameters last."""
    groups: dict[str, list[SweepCrossover]] = {axis.name: [] for axis in report.axes}
    for crossover in report.crossovers:
        groups.setdefault(crossover.outcome.axis, []).append(crossover)
    return [group for group in groups.values() if group]


def crossover_lines(group: Sequence[SweepCrossover], console: Console) -> tuple[Table, str]:
    """Return the crossovers along one axis, each with its interval, and what had no room.

    With all other axes held once, each GPU has a line of its own in words; with several held
    settings, each of these has a row, and each GPU a column. The second part of the answer is
    empty where everything is shown.
    """
    settings = _held_settings(group)
    return (_in_words(group), "") if len(settings) == 1 else _as_table(group, settings, console)


def group_title(group: Sequence[SweepCrossover]) -> str:
    """Return the title of what ``crossover_lines`` gives."""
    along = _word(group[0].outcome.axis)
    ends = {c.outcome.searched[1] for c in group if c.outcome.searched is not None}
    up_to = f" up to {max(ends):,}" if len(ends) == 1 else " searched"
    return f"From which {along} on a GPU is faster, for all larger ones{up_to}"


def _in_words(group: Sequence[SweepCrossover]) -> Table:
    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(overflow="fold")
    for crossover in sorted(group, key=_start):
        name = shorten(printable(crossover.device), _MAX_NAME_CHARACTERS)
        table.add_row(Text(name), _sentence(crossover))
    return table


def _sentence(crossover: SweepCrossover) -> Text:
    outcome = crossover.outcome
    match outcome:
        case Crossover():
            return Text.assemble(
                "from ", (_place(outcome), "bold"), f" on ({crossover_interval(outcome)})"
            )
        case NoCrossover():
            # The name stands before the sentence already.
            reason = printable(outcome.none_because, 600)
            return Text(reason.removeprefix(f"{printable(crossover.device)} "))
        case _:
            assert_never(outcome)


def _as_table(
    group: Sequence[SweepCrossover], settings: list[dict[str, AxisValue]], console: Console
) -> tuple[Table, str]:
    shown = _thinned(settings, _MAX_ROWS)
    devices = list(dict.fromkeys(crossover.device for crossover in group))
    held = [_held_column(name, shown) for name in settings[0]]
    room = console.width - _INDENT - _width(held)
    columns = [_device_column(group, device, shown, has_interval=True) for device in devices]
    if _width(columns) > room:
        columns = [_device_column(group, device, shown, has_interval=False) for device in devices]
    num_fitting = max(n for n in range(len(columns) + 1) if n < 2 or _width(columns[:n]) <= room)
    header, *rows = zip(*held, *columns[:num_fitting], strict=True)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for text in header:
        table.add_column(Text(text), justify="right", no_wrap=True, overflow="ellipsis")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table, _left_out(len(shown), len(settings), len(devices) - num_fitting)


def _held_column(name: str, settings: Sequence[dict[str, AxisValue]]) -> list[str]:
    cells = [name.replace("_", " "), *(value_text(held.get(name, "")) for held in settings)]
    return [shorten(printable(cell), _MAX_HELD_CHARACTERS) for cell in cells]


def _device_column(
    group: Sequence[SweepCrossover],
    device: str,
    settings: Sequence[dict[str, AxisValue]],
    *,
    has_interval: bool,
) -> list[str]:
    cells = [_cell(group, device, held, has_interval=has_interval) for held in settings]
    width = max(_MAX_HELD_CHARACTERS, *map(len, cells))
    return [shorten(printable(device), width), *cells]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + _GAP for column in columns)


def _left_out(num_shown: int, num_settings: int, num_devices: int) -> str:
    parts: list[str] = []
    if num_shown < num_settings:
        parts.append(f"{num_shown} of {num_settings:,} settings")
    if num_devices > 0:
        parts.append(f"no room for {num_devices} more {'GPU' if num_devices == 1 else 'GPUs'}")
    return "; ".join([*parts, "all by --json"]) if parts else ""


def _cell(
    group: Sequence[SweepCrossover], device: str, held: dict[str, AxisValue], *, has_interval: bool
) -> str:
    for crossover in group:
        if crossover.device == device and crossover.held == held:
            outcome = crossover.outcome
            if isinstance(outcome, Crossover):
                interval = f" ({crossover_interval(outcome)})" if has_interval else ""
                return f"{outcome.value:,}{interval}"
            if outcome.faster is None:
                return "not known"
            return "never" if outcome.faster is DeviceKind.CPU else "always"
    return "-"


def _fastest_sentence(report: SweepReport) -> str:
    """Say how often each kind has the shortest step, where sizes have no order."""
    best: dict[tuple[tuple[str, AxisValue], ...], tuple[float, DeviceKind]] = {}
    for point in report.points:
        if point.fits is False:
            continue
        key = tuple(point.settings.items())
        best[key] = min(best.get(key, (point.step_ns, point.kind)), (point.step_ns, point.kind))
    num_cpu = sum(kind is DeviceKind.CPU for _, kind in best.values())
    points = "1 point" if len(best) == 1 else f"{len(best):,} points"
    return f"The CPU has the shortest step at {num_cpu:,} of {points}."


def _many_settings_sentence(along: Sequence[SweepCrossover], num_settings: int) -> str:
    won = [c for c in along if _is_always_faster(c) or isinstance(c.outcome, Crossover)]
    num_won = len(_held_settings(won))
    word = _word(along[0].outcome.axis)
    if num_won == 0:
        return f"From no {word} searched on does a GPU pay off, in none of {num_settings} settings."
    starts = [c for c in won if isinstance(c.outcome, Crossover)]
    earliest = ""
    if starts and not any(_is_always_faster(c) for c in won):
        first = min(starts, key=_start)
        assert isinstance(first.outcome, Crossover)
        earliest = f", at the earliest {_from_on(first.outcome)} ({printable(first.device, 60)})"
    return f"A GPU pays off in {num_won} of {num_settings} settings{earliest}."


def _held_settings(group: Sequence[SweepCrossover]) -> list[dict[str, AxisValue]]:
    settings: list[dict[str, AxisValue]] = []
    for crossover in group:
        if crossover.held not in settings:
            settings.append(crossover.held)
    return settings


def _thinned(settings: list[dict[str, AxisValue]], num_kept: int) -> list[dict[str, AxisValue]]:
    if len(settings) <= num_kept:
        return settings
    last = len(settings) - 1
    return [settings[round(index * last / (num_kept - 1))] for index in range(num_kept)]


def _from_on(outcome: Crossover) -> str:
    return f"from {_place(outcome)} on ({crossover_interval(outcome)})"


def _word(axis: str) -> str:
    """Return ``batch size``, or ``number of threads``."""
    return f"number of {_COUNTED[axis]}" if axis in _COUNTED else axis_word(axis)


def _place(outcome: Crossover) -> str:
    """Return ``batch size 413``, or ``2 threads``."""
    counted = _COUNTED.get(outcome.axis)
    return (
        f"{outcome.value:,} {counted}"
        if counted
        else (f"{axis_word(outcome.axis)} {outcome.value:,}")
    )


def _range(crossover: SweepCrossover) -> str:
    searched = crossover.outcome.searched
    return "" if searched is None else f", {searched[0]:,} to {searched[1]:,}"


def _names(devices: Sequence[str]) -> str:
    shown = [printable(device, 60) for device in devices[:3]]
    rest = len(devices) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _start(crossover: SweepCrossover) -> float:
    """Return where the GPU begins to win, for sorting: infinity where it does not."""
    outcome = crossover.outcome
    if isinstance(outcome, Crossover):
        return outcome.value
    return 0 if outcome.faster is DeviceKind.GPU else math.inf


def _is_always_faster(crossover: SweepCrossover) -> bool:
    outcome = crossover.outcome
    return isinstance(outcome, NoCrossover) and outcome.faster is DeviceKind.GPU


def _is_never_faster(crossover: SweepCrossover) -> bool:
    outcome = crossover.outcome
    return isinstance(outcome, NoCrossover) and outcome.faster is DeviceKind.CPU
