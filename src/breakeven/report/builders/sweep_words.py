"""Where the curves of a sweep cross, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from breakeven.report.charts.build import axis_word, crossover_interval
from breakeven.report.text import printable
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


def headline(report: SweepReport) -> str:
    """Return the answer along the first axis in one sentence."""
    if not report.points:
        return "No point of the grid gave an answer."
    axis = report.axes[0].name
    along = [crossover for crossover in report.crossovers if crossover.outcome.axis == axis]
    if not along:
        return _fastest_sentence(report)
    num_settings = len(held_settings(along))
    if num_settings > 1:
        return _many_settings_sentence(along, num_settings)
    always = [c for c in along if _is_always_faster(c)]
    starts = [c for c in along if isinstance(c.outcome, Crossover)]
    word = _word(axis)
    if always:
        names = _names([crossover.device for crossover in always])
        return f"A GPU pays off at every {word} searched{_range(always[0])}: {names}."
    if starts:
        first = min(starts, key=start_of)
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


def group_title(group: Sequence[SweepCrossover]) -> str:
    """Return the title of the crossovers along one axis."""
    along = _word(group[0].outcome.axis)
    ends = {c.outcome.searched[1] for c in group if c.outcome.searched is not None}
    up_to = f" up to {max(ends):,}" if len(ends) == 1 else " searched"
    return f"From which {along} on a GPU is faster, for all larger ones{up_to}"


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
    num_won = len(held_settings(won))
    word = _word(along[0].outcome.axis)
    if num_won == 0:
        return f"From no {word} searched on does a GPU pay off, in none of {num_settings} settings."
    starts = [c for c in won if isinstance(c.outcome, Crossover)]
    earliest = ""
    if starts and not any(_is_always_faster(c) for c in won):
        first = min(starts, key=start_of)
        assert isinstance(first.outcome, Crossover)
        earliest = f", at the earliest {_from_on(first.outcome)} ({printable(first.device, 60)})"
    return f"A GPU pays off in {num_won} of {num_settings} settings{earliest}."


def held_settings(group: Sequence[SweepCrossover]) -> list[dict[str, AxisValue]]:
    """Return the settings of the other axes for which crossovers are told."""
    settings: list[dict[str, AxisValue]] = []
    for crossover in group:
        if crossover.held not in settings:
            settings.append(crossover.held)
    return settings


def _from_on(outcome: Crossover) -> str:
    return f"from {place_text(outcome)} on ({crossover_interval(outcome)})"


def _word(axis: str) -> str:
    """Return ``batch size``, or ``number of threads``."""
    return f"number of {_COUNTED[axis]}" if axis in _COUNTED else axis_word(axis)


def place_text(outcome: Crossover) -> str:
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


def start_of(crossover: SweepCrossover) -> float:
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
