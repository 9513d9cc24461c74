"""What two runs are compared by: the names of their times, and all else that may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from breakeven.simulate import Finding
from breakeven.timing import Estimate, Source
from breakeven.verdict.compiled import CompiledResult
from breakeven.verdict.report import CheckReport, CurvePoint, HostSummary, StepSummary, curve_point
from breakeven.verdict.results import DeviceResult
from breakeven.verdict.sweep_report import AxisValue, SweepPoint, SweepReport
from breakeven.verdict.system_report import (
    ClaimOutcome,
    ColumnKind,
    SystemsReport,
    SystemTable,
    TableRow,
)

Comparable = CheckReport | SweepReport | SystemsReport
# Of columns on the left of a table, those that say what a row is about.
_NAMING = (ColumnKind.TEXT, ColumnKind.COUNT, ColumnKind.BYTES)
PointKey = tuple[str, str, str, tuple[tuple[str, AxisValue], ...]]


def settings_key(settings: Mapping[str, AxisValue]) -> tuple[tuple[str, AxisValue], ...]:
    """Return settings as a key of a dictionary, whatever the order of the axes."""
    return tuple(sorted(settings.items(), key=lambda item: item[0]))


class PointName(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one step time of a run from the others.

    Args:
        group: The system, where a run has several; else empty.
        device: Name of the device; of a table, what its row is about.
        settings: The value of every axis; of a table, its title and column.
        variant: ``compiled`` for the step as ``torch.compile`` would make it; else empty.
    """

    group: str
    device: str
    settings: dict[str, AxisValue]
    variant: str = ""

    @property
    def key(self) -> PointKey:
        """Return the same as a key of a dictionary, whatever the order of the axes."""
        return self.group, self.device, self.variant, settings_key(self.settings)


class NamedTime(NamedTuple):
    """A step time, and by what another run's is found."""

    name: PointName
    time: DeviceResult | SweepPoint | CurvePoint


def named_times(report: Comparable) -> dict[PointKey, NamedTime]:
    """Return every step time of a report that has an interval, by its key.

    A check has those of its devices, eager and compiled; systems have those of their sweeps, and
    the estimates of their tables.
    """
    return {time.name.key: time for time in _times(report, "")}


def _times(report: Comparable, group: str) -> Iterator[NamedTime]:
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
    """Yield what a row is about: texts and sizes left of its figures, which runs may change."""
    columns = takewhile(lambda column: column.kind in _NAMING, table.columns)
    for column, cell in zip(columns, row.cells, strict=False):
        if isinstance(cell, str | int):
            is_bytes = column.kind is ColumnKind.BYTES and isinstance(cell, int)
            yield f"{cell:,} bytes" if is_bytes else str(cell)


class FactChange(msgspec.Struct, frozen=True, kw_only=True):
    """A circumstance of the runs that differs.

    Args:
        name: What it is.
        before: Of the first run.
        after: Of the second run.
    """

    name: str
    before: str
    after: str


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the traced step that differs.

    Args:
        name: Its key in the report.
        before: Of the first run; null where it is not known.
        after: Of the second run; the same.
    """

    name: str
    before: int | None
    after: int | None


class ClaimChange(msgspec.Struct, frozen=True, kw_only=True):
    """A published claim that both runs looked at.

    Args:
        system: Name of the system.
        claim: The statement.
        before: Whether the first run agrees.
        after: Whether the second does.
        before_ours: The figure of the first run.
        after_ours: That of the second.
    """

    system: str
    claim: str
    before: ClaimOutcome
    after: ClaimOutcome
    before_ours: str
    after_ours: str


def fact_changes(before: Comparable, after: Comparable) -> tuple[FactChange, ...]:
    """Return the circumstances that differ: of the target, the machine and the versions."""
    ours, theirs = dict(_facts(before)), dict(_facts(after))
    names = dict.fromkeys((*ours, *theirs))
    return tuple(
        FactChange(name=name, before=ours.get(name, ""), after=theirs.get(name, ""))
        for name in names
        if ours.get(name, "") != theirs.get(name, "")
    )


def step_changes(before: Comparable, after: Comparable) -> tuple[CountChange, ...]:
    """Return the numbers of the step that differ; none unless both runs are checks."""
    if not (isinstance(before, CheckReport) and isinstance(after, CheckReport)):
        return ()
    ours, theirs = _counts(before.step), _counts(after.step)
    return tuple(
        CountChange(name=name, before=ours[name], after=theirs[name])
        for name in ours
        if ours[name] != theirs[name]
    )


def finding_changes(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that are gone and those that are new.

    A line that moved is no change: findings of one rule in one file are paired, those of the
    same line first.
    """
    gone, new = list(before), list(after)
    for same_line in (True, False):
        for finding in tuple(gone):
            twin = next((f for f in new if _is_twin(finding, f, same_line=same_line)), None)
            if twin is not None:
                gone.remove(finding)
                new.remove(twin)
    return tuple(gone), tuple(new)


def claim_changes(before: Comparable, after: Comparable) -> tuple[ClaimChange, ...]:
    """Return the claims of which the outcome or our figure differs."""
    if not (isinstance(before, SystemsReport) and isinstance(after, SystemsReport)):
        return ()
    ours = {(s.name, claim.claim): claim for s in before.systems for claim in s.claims}
    theirs = {(s.name, claim.claim): claim for s in after.systems for claim in s.claims}
    return tuple(
        ClaimChange(
            system=key[0],
            claim=key[1],
            before=ours[key].outcome,
            after=theirs[key].outcome,
            before_ours=ours[key].ours,
            after_ours=theirs[key].ours,
        )
        for key in ours
        if key in theirs
        and (ours[key].outcome, ours[key].ours) != (theirs[key].outcome, theirs[key].ours)
    )


def _is_twin(one: Finding, other: Finding, *, same_line: bool) -> bool:
    is_same_rule = (one.code, one.file) == (other.code, other.file)
    return is_same_rule and (one.line == other.line or not same_line)


def _counts(step: StepSummary) -> dict[str, int | None]:
    """Return all that a step tells of itself, but for what it takes."""
    return {name: getattr(step, name) for name in step.__struct_fields__ if name != "host_ns"}


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
