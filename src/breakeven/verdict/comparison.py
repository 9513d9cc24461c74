"""Two stored runs of one kind, compared: what is faster, what is slower, what is not shown.

The JSON document is made from these types, so a changed key is a changed contract: raise
``COMPARISON_SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from breakeven.simulate import Finding
from breakeven.timing import Source
from breakeven.verdict.comparison_parts import (
    ClaimChange,
    Comparable,
    CountChange,
    FactChange,
    NamedTime,
    PointName,
    claim_changes,
    fact_changes,
    finding_changes,
    named_times,
    settings_key,
    step_changes,
)
from breakeven.verdict.crossover import log_ratio
from breakeven.verdict.report import CheckReport, Crossover, NoCrossover, Verdict
from breakeven.verdict.results import Nanoseconds
from breakeven.verdict.sweep_report import AxisValue, SweepReport
from breakeven.verdict.system_report import SystemsReport

COMPARISON_SCHEMA_VERSION = 1


class Change(StrEnum):
    """How a time differs between two runs."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_SHOWN = "not_shown"
    """The difference is within the intervals."""


class CrossoverShift(StrEnum):
    """How a crossover differs between two runs."""

    EARLIER = "earlier"
    LATER = "later"
    NOT_SHOWN = "not_shown"
    """The intervals overlap."""
    FOUND = "found"
    """There was none before."""
    LOST = "lost"
    """There is none any more."""
    NONE = "none"
    """Neither run has one."""


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step time in both runs.

    Args:
        point: Which one.
        before_ns: Time in the first run.
        after_ns: Time in the second run.
        before_source: Whether the first was measured.
        after_source: Whether the second was measured.
        ratio: The second time divided by the first: below 1 is faster.
        low: Lower end of its 90 % interval, from both times' own, as if independent.
        high: Upper end.
        change: Whether the difference is more than the interval.
    """

    point: PointName
    before_ns: Nanoseconds
    after_ns: Nanoseconds
    before_source: Source
    after_source: Source
    ratio: float
    low: float
    high: float
    change: Change


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """All step times of a device in both runs.

    Args:
        group: The system, where a run has several; else empty.
        device: Name of the device.
        num_points: Times that both runs have.
        num_faster: Of these, those that became faster by more than their interval.
        num_slower: Those that became slower.
        ratio: Median of the ratios.
        low: Median of the lower ends of their intervals.
        high: Median of the upper ends.
        change: What these three say.
        variant: As in the names of its points.
    """

    group: str
    device: str
    num_points: int
    num_faster: int
    num_slower: int
    ratio: float
    low: float
    high: float
    change: Change
    variant: str = ""


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of both runs.

    Args:
        before: Of the first run.
        after: Of the second run.
    """

    before: Verdict
    after: Verdict


class CrossoverChange(msgspec.Struct, frozen=True, kw_only=True):
    """A crossover in both runs.

    Args:
        group: The system, where a run has several; else empty.
        device: The GPU; empty for the crossover of a check, which may be of another GPU.
        axis: What is varied.
        held: The value of every other axis.
        before: In the first run; null where that did not search for it.
        after: In the second run; the same.
        shift: How they differ; null where one run did not search for it.
    """

    group: str
    device: str
    axis: str
    held: dict[str, AxisValue]
    before: Crossover | NoCrossover | None
    after: Crossover | NoCrossover | None
    shift: CrossoverShift | None


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven compare` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        facts: What differs between the runs besides their answers.
        verdicts: Of two checks; else null.
        devices: Median change of each device that both runs have.
        times: Change of each step time that both have.
        only_before: Step times that only the first run has.
        only_after: Those that only the second has.
        incomparable: Step times of which one is 0 or outside its own interval.
        crossovers: From where on GPUs win.
        steps: Numbers of the traced step that differ, of two checks.
        findings_gone: What only the first run found.
        findings_new: What only the second found.
        claims: Published claims of which the outcome or our figure differs.
    """

    schema_version: int
    facts: tuple[FactChange, ...]
    verdicts: VerdictChange | None
    devices: tuple[DeviceChange, ...]
    times: tuple[TimeChange, ...]
    only_before: tuple[PointName, ...] = ()
    only_after: tuple[PointName, ...] = ()
    incomparable: tuple[PointName, ...] = ()
    crossovers: tuple[CrossoverChange, ...] = ()
    steps: tuple[CountChange, ...] = ()
    findings_gone: tuple[Finding, ...] = ()
    findings_new: tuple[Finding, ...] = ()
    claims: tuple[ClaimChange, ...] = ()


def compare_reports(before: Comparable, after: Comparable) -> ComparisonReport:
    """Return how the second run differs from the first.

    A step time counts as changed only where the 90 % interval of its ratio leaves out 1. Two
    predictions share errors of the model, which the interval cannot know: for them it is rather
    too wide than too narrow.

    Raises:
        ValueError: The runs are of different kinds.
    """
    if type(before) is not type(after):
        raise ValueError("runs of different kinds have nothing to compare")
    ours, theirs = named_times(before), named_times(after)
    changes = {key: _time_change(ours[key], theirs[key]) for key in ours if key in theirs}
    times = tuple(change for change in changes.values() if change is not None)
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    verdicts: VerdictChange | None = None
    if isinstance(before, CheckReport) and isinstance(after, CheckReport):
        gone, new = finding_changes(before.findings, after.findings)
        verdicts = VerdictChange(before=before.verdict, after=after.verdict)
    return ComparisonReport(
        schema_version=COMPARISON_SCHEMA_VERSION,
        facts=fact_changes(before, after),
        verdicts=verdicts,
        devices=tuple(_device_changes(times)),
        times=times,
        only_before=tuple(time.name for key, time in ours.items() if key not in theirs),
        only_after=tuple(time.name for key, time in theirs.items() if key not in ours),
        incomparable=tuple(ours[key].name for key, change in changes.items() if change is None),
        crossovers=tuple(_crossover_changes(before, after)),
        steps=step_changes(before, after),
        findings_gone=gone,
        findings_new=new,
        claims=claim_changes(before, after),
    )


def _time_change(before: NamedTime, after: NamedTime) -> TimeChange | None:
    """Return how a time changed; None where one of them cannot be a divisor."""
    try:
        ratio = log_ratio(after.time, before.time)
        value, low, high = (math.exp(part) for part in (ratio.value, ratio.low, ratio.high))
    except (ValueError, OverflowError):
        return None
    return TimeChange(
        point=before.name,
        before_ns=before.time.step_ns,
        after_ns=after.time.step_ns,
        before_source=before.time.source,
        after_source=after.time.source,
        ratio=value,
        low=low,
        high=high,
        change=_change(low, high),
    )


def _change(low: float, high: float) -> Change:
    if low > 1:
        return Change.SLOWER
    return Change.FASTER if high < 1 else Change.NOT_SHOWN


def _device_changes(times: Sequence[TimeChange]) -> Iterator[DeviceChange]:
    by_device: dict[tuple[str, str, str], list[TimeChange]] = {}
    for time in times:
        point = time.point
        by_device.setdefault((point.group, point.device, point.variant), []).append(time)
    for (group, device, variant), own in by_device.items():
        low = statistics.median(time.low for time in own)
        high = statistics.median(time.high for time in own)
        yield DeviceChange(
            group=group,
            device=device,
            num_points=len(own),
            num_faster=sum(time.change is Change.FASTER for time in own),
            num_slower=sum(time.change is Change.SLOWER for time in own),
            ratio=statistics.median(time.ratio for time in own),
            low=low,
            high=high,
            change=_change(low, high),
            variant=variant,
        )


_CrossoverKey = tuple[str, str, str, tuple[tuple[str, AxisValue], ...]]


def _crossover_changes(before: Comparable, after: Comparable) -> Iterator[CrossoverChange]:
    ours, theirs = _crossovers(before), _crossovers(after)
    for key in dict.fromkeys((*ours, *theirs)):
        group, device, axis, held = key
        mine, other = ours.get(key), theirs.get(key)
        yield CrossoverChange(
            group=group,
            device=device,
            axis=axis,
            held=dict(held),
            before=mine,
            after=other,
            shift=None if mine is None or other is None else _shift(mine, other),
        )


def _crossovers(
    report: Comparable, group: str = ""
) -> dict[_CrossoverKey, Crossover | NoCrossover]:
    match report:
        case CheckReport():
            return {(group, "", report.crossover.axis, ()): report.crossover}
        case SweepReport():
            return {
                (group, found.device, found.outcome.axis, settings_key(found.held)): found.outcome
                for found in report.crossovers
            }
        case SystemsReport():
            return {
                key: outcome
                for system in report.systems
                for sweep in system.sweeps
                for key, outcome in _crossovers(sweep, system.name).items()
            }


def _shift(before: Crossover | NoCrossover, after: Crossover | NoCrossover) -> CrossoverShift:
    if isinstance(before, NoCrossover):
        return CrossoverShift.NONE if isinstance(after, NoCrossover) else CrossoverShift.FOUND
    if isinstance(after, NoCrossover):
        return CrossoverShift.LOST
    if after.high is not None and after.high < before.low:
        return CrossoverShift.EARLIER
    if before.high is not None and before.high < after.low:
        return CrossoverShift.LATER
    return CrossoverShift.NOT_SHOWN
