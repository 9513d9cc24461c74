"""From where on a GPU wins along the axes of a sweep, in a sentence and in tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from breakeven.report.charts.build import (
    axis_word,
    crossover_interval,
    settings_text,
)
from breakeven.report.document import Section
from breakeven.report.phrase import Phrase
from breakeven.report.table import (
    Cell,
    Column,
    Table,
    evenly_spread,
)
from breakeven.report.text import listed, plural, printable, shorten
from breakeven.verdict import (
    NUM_PARAMETERS,
    AxisValue,
    Crossover,
    DeviceKind,
    NoCrossover,
    SweepCrossover,
    SweepReport,
)

# Axes whose values are counts of something: "2 threads", but "batch size 64".
_COUNTED: Mapping[str, str] = {
    NUM_PARAMETERS: "parameters",
    "threads": "threads",
    "num_devices": "GPUs",
}
_NEVER = {DeviceKind.CPU: "never", DeviceKind.GPU: "always", None: "not known"}
_MAX_ROWS = 12


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
    always = [c for c in along if _is_always(DeviceKind.GPU, c)]
    starts = [c for c in along if isinstance(c.outcome, Crossover)]
    word = _word(axis)
    if always:
        names = listed([printable(crossover.device, 60) for crossover in always], 3)
        return f"A GPU pays off at every {word} searched{_range(always[0])}: {names}."
    if starts:
        first = min(starts, key=_start_of)
        place = _from_on(first.outcome) if isinstance(first.outcome, Crossover) else ""
        return f"A GPU pays off {place}: {printable(first.device, 60)}."
    if all(_is_always(DeviceKind.CPU, crossover) for crossover in along):
        return f"No GPU pays off at any {word} searched{_range(along[0])}."
    return f"From no {word} searched on does a GPU pay off for good{_range(along[0])}."


def crossover_sections(report: SweepReport) -> Iterator[Section]:
    """Yield the crossovers, by the axis that they are along."""
    groups: dict[str, list[SweepCrossover]] = {axis.name: [] for axis in report.axes}
    for crossover in report.crossovers:
        groups.setdefault(crossover.outcome.axis, []).append(crossover)
    for group in filter(None, groups.values()):
        along = _word(group[0].outcome.axis)
        ends = {c.outcome.searched[1] for c in group if c.outcome.searched is not None}
        up_to = f" up to {max(ends):,}" if len(ends) == 1 else " searched"
        title = f"From which {along} on a GPU is faster, for all larger ones{up_to}"
        yield Section(title, (_group_table(group),))


def _fastest_sentence(report: SweepReport) -> str:
    """Say how often each kind has the shortest step, where sizes have no order."""
    best: dict[tuple[tuple[str, AxisValue], ...], tuple[float, DeviceKind]] = {}
    for point in report.points:
        if point.fits is False:
            continue
        key = tuple(point.settings.items())
        best[key] = min(best.get(key, (point.step_ns, point.kind)), (point.step_ns, point.kind))
    num_cpu = sum(kind is DeviceKind.CPU for _, kind in best.values())
    return f"The CPU has the shortest step at {num_cpu:,} of {plural(len(best), 'point')}."


def _many_settings_sentence(along: Sequence[SweepCrossover], num_settings: int) -> str:
    always = [c for c in along if _is_always(DeviceKind.GPU, c)]
    starts = [c for c in along if isinstance(c.outcome, Crossover)]
    num_won = len(_held_settings([*always, *starts]))
    word = _word(along[0].outcome.axis)
    if num_won == 0:
        return f"From no {word} searched on does a GPU pay off, in none of {num_settings} settings."
    earliest = ""
    if starts and not always:
        first = min(starts, key=_start_of)
        assert isinstance(first.outcome, Crossover)
        earliest = f", at the earliest {_from_on(first.outcome)} ({printable(first.device, 60)})"
    return f"A GPU pays off in {num_won} of {num_settings} settings{earliest}."


def _held_settings(group: Sequence[SweepCrossover]) -> list[dict[str, AxisValue]]:
    """Return the settings of the other axes for which crossovers are told."""
    settings: list[dict[str, AxisValue]] = []
    for crossover in group:
        if crossover.held not in settings:
            settings.append(crossover.held)
    return settings


def _from_on(outcome: Crossover) -> str:
    return f"from {_place_text(outcome)} on ({crossover_interval(outcome)})"


def _word(axis: str) -> str:
    """Return ``batch size``, or ``number of threads``."""
    return f"number of {_COUNTED[axis]}" if axis in _COUNTED else axis_word(axis)


def _place_text(outcome: Crossover) -> str:
    """Return ``batch size 413``, or ``2 threads``."""
    value, counted = f"{outcome.value:,}", _COUNTED.get(outcome.axis)
    return f"{value} {counted}" if counted else f"{axis_word(outcome.axis)} {value}"


def _range(crossover: SweepCrossover) -> str:
    searched = crossover.outcome.searched
    return "" if searched is None else f", {searched[0]:,} to {searched[1]:,}"


def _start_of(crossover: SweepCrossover) -> float:
    """Return where the GPU begins to win, for sorting: infinity where it does not."""
    outcome = crossover.outcome
    if isinstance(outcome, Crossover):
        return outcome.value
    return 0 if outcome.faster is DeviceKind.GPU else math.inf


def _is_always(kind: DeviceKind, crossover: SweepCrossover) -> bool:
    """Return whether a kind is faster at every value searched."""
    outcome = crossover.outcome
    return isinstance(outcome, NoCrossover) and outcome.faster is kind


def _group_table(group: Sequence[SweepCrossover]) -> Table:
    """Return a sentence for each GPU, or a row for each setting of the other axes."""
    settings = _held_settings(group)
    if len(settings) == 1:
        ordered = sorted(group, key=_start_of)
        names = [shorten(printable(crossover.device), 24) for crossover in ordered]
        sentences = [Cell(_sentence(crossover)) for crossover in ordered]
        columns = (Column("GPU", names), Column("from", sentences, folds=True, least=12))
        return Table(columns, has_header=False)
    shown = evenly_spread(range(len(settings)), _MAX_ROWS)
    found = {(c.device, settings.index(c.held)): c for c in group}
    gpus = (
        Column(
            printable(device),
            [_cell(found.get((device, number))) for number in shown],
            is_number=True,
        )
        for device in dict.fromkeys(crossover.device for crossover in group)
    )
    is_cut = len(shown) < len(settings)
    cut = f"{len(shown)} of {len(settings):,} settings; all by --json" if is_cut else ""
    names = [printable(settings_text(settings[number]), 60) for number in shown]
    return Table((Column("", names, folds=True), *gpus), legend=cut)


def _sentence(crossover: SweepCrossover) -> Phrase:
    outcome = crossover.outcome
    match outcome:
        case Crossover():
            return ("from ", (_place_text(outcome), "bold"), f" on ({crossover_interval(outcome)})")
        case NoCrossover():
            # The name stands before the sentence already.
            reason = printable(outcome.none_because, 600)
            return reason.removeprefix(f"{printable(crossover.device)} ")
        case _:
            assert_never(outcome)


def _cell(crossover: SweepCrossover | None) -> str:
    if crossover is None:
        return "-"
    outcome = crossover.outcome
    if not isinstance(outcome, Crossover):
        return _NEVER[outcome.faster]
    return f"{outcome.value:,} ({crossover_interval(outcome)})"
