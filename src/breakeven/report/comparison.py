"""Compares two stored runs of one kind: faster, slower, or no difference shown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from breakeven.report.check_report import CheckReport
from breakeven.report.comparison_report import (
    COMPARISON_SCHEMA_VERSION,
    Change,
    ClaimChange,
    ComparisonReport,
    CountChange,
    CrossoverChange,
    CrossoverShift,
    DeviceChange,
    FactChange,
    PointKey,
    PointName,
    TimeChange,
    VerdictChange,
    settings_key,
)
from breakeven.report.system_report import ColumnKind, SystemsReport, SystemTable, TableRow
from breakeven.simulate import Bound, Finding
from breakeven.timing import Estimate, Source
from breakeven.trace import StepTrace
from breakeven.verdict.compiled import CompiledResult
from breakeven.verdict.crossover import Timed, log_ratio
from breakeven.verdict.report import Crossover, CurvePoint, HostSummary, NoCrossover, curve_point
from breakeven.verdict.results import DeviceKind, DeviceResult
from breakeven.verdict.sweep_report import AxisValue, SweepReport

Comparable = CheckReport | SweepReport | SystemsReport
# Two similar predictions for one GPU share most of their error: the interval of their ratio has
# this share of the width of independent ones. It covers 91 to 98 % of left-out sources' pairs, but
# they also chose the level of the fit: at 90 %, one of three sources is covered in 67 %.
# Source: `python -m lab.ratios`, 491 pairs of measured steps of 3 sources, 2026-11-29.
_SHARED_WIDTH = 0.58
# Similar predictions have at least this share of operators in common, times within this factor, and
# one of these bottlenecks: each run measures its host, and those errors are independent.
LEAST_COMMON = 0.5
MOST_RATIO = 2.0
DEVICE_BOUNDS = (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY)
# Kinds of the leading table columns that name the subject of a row.
_NAMING = (ColumnKind.TEXT, ColumnKind.COUNT, ColumnKind.BYTES)


def compare_reports(before: Comparable, after: Comparable) -> ComparisonReport:
    """Return the differences of the second run from the first.

    A step time counts as changed only if the 90 % interval of its ratio excludes 1.

    Raises:
        ValueError: The runs are of different kinds.
    """
    if type(before) is not type(after):
        raise ValueError("runs of different kinds have nothing to compare")
    ours, theirs = ({time.name.key: time for time in _times(run, "")} for run in (before, after))
    facts, other_facts = dict(_facts(before)), dict(_facts(after))
    are_similar = _are_similar(before, after)
    changes = {
        key: _time_change(ours[key], theirs[key], are_similar=are_similar)
        for key in ours
        if key in theirs
    }
    times = tuple(change for change in changes.values() if change is not None)
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    verdicts: VerdictChange | None = None
    steps: tuple[CountChange, ...] = ()
    claims: tuple[ClaimChange, ...] = ()
    if isinstance(before, CheckReport) and isinstance(after, CheckReport):
        gone, new = _finding_changes(before.findings, after.findings)
        verdicts = VerdictChange(before=before.verdict, after=after.verdict)
        counts = [
            (name, getattr(before.step, name), getattr(after.step, name))
            for name in before.step.__struct_fields__
            if name != "host_ns"  # a time, not a count
        ]
        steps = tuple(
            CountChange(name=name, before=mine, after=other)
            for name, mine, other in counts
            if mine != other
        )
    if isinstance(before, SystemsReport) and isinstance(after, SystemsReport):
        claims = tuple(_claim_changes(before, after))
    return ComparisonReport(
        schema_version=COMPARISON_SCHEMA_VERSION,
        facts=tuple(
            FactChange(name=name, before=facts.get(name, ""), after=other_facts.get(name, ""))
            for name in dict.fromkeys((*facts, *other_facts))
            if facts.get(name, "") != other_facts.get(name, "")
        ),
        verdicts=verdicts,
        devices=tuple(_device_changes(times)),
        times=times,
        only_before=tuple(time.name for key, time in ours.items() if key not in theirs),
        only_after=tuple(time.name for key, time in theirs.items() if key not in ours),
        incomparable=tuple(ours[key].name for key, change in changes.items() if change is None),
        crossovers=tuple(_crossover_changes(before, after)),
        steps=steps,
        findings_gone=gone,
        findings_new=new,
        claims=claims,
    )


def _are_similar(before: Comparable, after: Comparable) -> bool:
    """Return whether one calibration predicted similar steps, fed by one processor."""
    if not (isinstance(before, CheckReport) and isinstance(after, CheckReport)):
        return False
    ours, theirs = before.recording, after.recording
    return (
        ours is not None
        and theirs is not None
        and ours.calibration == theirs.calibration != ""
        and before.host.name == after.host.name
        and common_fraction(ours.trace, theirs.trace) >= LEAST_COMMON
    )


def common_fraction(one: StepTrace, other: StepTrace) -> float:
    """Return the share of operators that two steps have in common, by name, from 0 to 1."""
    ours, theirs = (Counter(op.name for op in trace.ops) for trace in (one, other))
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 0.0


def _time_change(before: NamedTime, after: NamedTime, *, are_similar: bool) -> TimeChange | None:
    """Return the change of a time; None if one of the times is invalid."""
    try:
        ratio = log_ratio(after.time, before.time)
        width = _SHARED_WIDTH if are_similar and _is_alike(before.time, after.time) else 1.0
        value, low, high = (
            math.exp(ratio.value + width * (part - ratio.value))
            for part in (ratio.value, ratio.low, ratio.high)
        )
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


def _is_alike(before: Timed, after: Timed) -> bool:
    """Return whether both are predictions for a GPU, which limits both steps alike."""
    if not (isinstance(before, DeviceResult) and isinstance(after, DeviceResult)):
        return False
    names = ("precision", "bound", "calibrated_on", "fed_by")
    return (
        before.kind is DeviceKind.GPU
        and before.bound in DEVICE_BOUNDS
        and before.source is after.source is Source.PREDICTED
        and all(getattr(before, name) == getattr(after, name) for name in names)
        and 1 / MOST_RATIO <= after.step_ns / before.step_ns <= MOST_RATIO
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


def _crossovers(report: Comparable, group: str = "") -> dict[PointKey, Crossover | NoCrossover]:
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


class NamedTime(NamedTuple):
    """A step time, and the name that matches it with the other run."""

    name: PointName
    time: Timed


def _times(report: Comparable, group: str) -> Iterator[NamedTime]:
    """Yield every step time of a report, if it has an interval.

    A check has step times of its devices, eager and compiled. Systems have those of their sweeps
    and the estimates of their tables.
    """
    match report:
        case CheckReport():
            compiled = (
                {one.device: one for one in report.compiled.results} if report.compiled else {}
            )
            for result in (*report.results, *report.absent_cpus):
                name = PointName(group=group, device=result.device, settings={})
                yield NamedTime(name, result)
                if one := compiled.get(result.device):
                    yield NamedTime(replace(name, variant="compiled"), _predicted(one))
        case SweepReport():
            for point in report.points:
                name = PointName(group=group, device=point.device, settings=point.settings)
                yield NamedTime(name, point)
        case SystemsReport():
            for system in report.systems:
                for sweep in system.sweeps:
                    yield from _times(sweep, system.name)
                for table in system.tables:
                    yield from _of_table(table, system.name)


def _predicted(step: CompiledResult) -> CurvePoint:
    return CurvePoint(
        size=0,
        step_ns=step.step_ns,
        low_ns=step.low_ns,
        high_ns=step.high_ns,
        source=Source.PREDICTED,
    )


def _of_table(table: SystemTable, group: str) -> Iterator[NamedTime]:
    for row in table.rows:
        about = " ".join(_about(row, table))
        for column, cell in zip(table.columns, row.cells, strict=False):
            if column.kind is ColumnKind.TIME_NS and isinstance(cell, Estimate):
                settings: dict[str, AxisValue] = {"table": table.title, "column": column.name}
                name = PointName(group=group, device=about, settings=settings)
                yield NamedTime(name, curve_point(0, cell))


def _about(row: TableRow, table: SystemTable) -> Iterator[str]:
    """Yield the subject of a row: texts and sizes left of its figures, which may vary by run."""
    columns = takewhile(lambda column: column.kind in _NAMING, table.columns)
    for column, cell in zip(columns, row.cells, strict=False):
        if isinstance(cell, str | int):
            is_bytes = column.kind is ColumnKind.BYTES and isinstance(cell, int)
            yield f"{cell:,} bytes" if is_bytes else str(cell)


def _finding_changes(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the disappeared and the new findings.

    A moved line or a renamed file is no change: findings of one rule are paired, first those at the
    same line of the same file, then those in the same file, then, if no file has findings in both
    runs, those at the same line.
    """
    gone, new = list(before), list(after)
    places = [attrgetter("file", "line"), attrgetter("file")]
    if not {one.file for one in before} & {one.file for one in after}:
        places.append(attrgetter("line"))
    for place_of in places:
        for finding in tuple(gone):
            alike = (one for one in new if one.code == finding.code)
            twin = next((one for one in alike if place_of(one) == place_of(finding)), None)
            if twin is not None:
                gone.remove(finding)
                new.remove(twin)
    return tuple(gone), tuple(new)


def _claim_changes(before: SystemsReport, after: SystemsReport) -> Iterator[ClaimChange]:
    """Yield the claims whose outcome or figure of ours differs."""
    theirs = {(s.name, claim.claim): claim for s in after.systems for claim in s.claims}
    for system in before.systems:
        for mine in system.claims:
            other = theirs.get((system.name, mine.claim))
            if other and (mine.outcome, mine.ours) != (other.outcome, other.ours):
                yield ClaimChange(
                    system=system.name,
                    claim=mine.claim,
                    before=mine.outcome,
                    after=other.outcome,
                    before_ours=mine.ours,
                    after_ours=other.ours,
                )


def _facts(report: Comparable) -> Iterator[tuple[str, str]]:
    match report:
        case CheckReport():
            yield "target", report.target
            if report.compiled is not None:
                yield "torch.compile", report.compiled.mode
            yield from _host_facts(report.host)
        case SweepReport():
            yield "target", " ".join((report.target, *report.arguments))
            yield from _host_facts(report.host)
        case SystemsReport():
            yield "systems", ", ".join(system.name for system in report.systems)
            for system in report.systems[:1]:
                yield from _host_facts(system.host)


def _host_facts(host: HostSummary) -> Iterator[tuple[str, str]]:
    yield "host", host.name
    yield "threads", str(host.num_threads)
    yield "torch", host.torch_version
    yield "Python", host.python_version
    yield "host costs", host.source
