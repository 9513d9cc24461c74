"""The step times of a report, each with a name by which another run's is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from breakeven.timing import Estimate, Source
from breakeven.verdict.report import CheckReport
from breakeven.verdict.sweep_report import AxisValue, SweepReport
from breakeven.verdict.system_report import ColumnKind, SystemsReport, SystemTable, TableRow

# Of columns on the left of a table, those that say what a row is about.
_NAMING = (ColumnKind.TEXT, ColumnKind.COUNT, ColumnKind.BYTES)


class PointName(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one step time of a run from the others.

    Args:
        group: The system, where a run has several; else empty.
        device: Name of the device; of a table, what its row is about.
        settings: The value of every axis; of a table, its title and column.
    """

    group: str
    device: str
    settings: dict[str, AxisValue]

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, AxisValue], ...]]:
        """Return the same as a key of a dictionary, whatever the order of the axes."""
        settings = sorted(self.settings.items(), key=lambda item: item[0])
        return self.group, self.device, tuple(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTime:
    """A step time with its interval and its name."""

    name: PointName
    step_ns: float
    low_ns: float
    high_ns: float
    source: Source


def named_times(report: CheckReport | SweepReport | SystemsReport) -> tuple[NamedTime, ...]:
    """Return every step time of a report that has an interval, each name once.

    A check has those of its devices; systems have those of their sweeps, and the estimates of
    their tables.
    """
    match report:
        case CheckReport():
            times = _of_check(report)
        case SweepReport():
            times = _of_sweep(report, "")
        case SystemsReport():
            times = _of_systems(report)
    return tuple({time.name.key: time for time in times}.values())


def _of_check(report: CheckReport) -> Iterator[NamedTime]:
    for result in report.results:
        yield NamedTime(
            name=PointName(group="", device=result.device, settings={}),
            step_ns=result.step_ns,
            low_ns=result.low_ns,
            high_ns=result.high_ns,
            source=result.source,
        )


def _of_sweep(report: SweepReport, group: str) -> Iterator[NamedTime]:
    for point in report.points:
        yield NamedTime(
            name=PointName(group=group, device=point.device, settings=point.settings),
            step_ns=point.step_ns,
            low_ns=point.low_ns,
            high_ns=point.high_ns,
            source=point.source,
        )


def _of_systems(report: SystemsReport) -> Iterator[NamedTime]:
    for system in report.systems:
        for sweep in system.sweeps:
            yield from _of_sweep(sweep, system.name)
        for table in system.tables:
            for row in table.rows:
                yield from _of_row(row, table, system.name)


def _of_row(row: TableRow, table: SystemTable, group: str) -> Iterator[NamedTime]:
    about = " ".join(_about(row, table))
    for column, cell in zip(table.columns, row.cells, strict=False):
        if column.kind is ColumnKind.TIME_NS and isinstance(cell, Estimate):
            yield NamedTime(
                name=PointName(
                    group=group,
                    device=about,
                    settings={"table": table.title, "column": column.name},
                ),
                step_ns=cell.value_ns,
                low_ns=cell.low_ns,
                high_ns=cell.high_ns,
                source=cell.source,
            )


def _about(row: TableRow, table: SystemTable) -> Iterator[str]:
    """Yield what a row is about: texts and sizes left of its figures, which runs may change."""
    columns = takewhile(lambda column: column.kind in _NAMING, table.columns)
    for column, cell in zip(columns, row.cells, strict=False):
        if isinstance(cell, str | int):
            is_bytes = column.kind is ColumnKind.BYTES and isinstance(cell, int)
            yield f"{cell:,} bytes" if is_bytes else str(cell)
