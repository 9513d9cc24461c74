"""Reports of earlier versions: facts that they hold within texts, as fields."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from breakeven.verdict import (
    AxisRole,
    CheckReport,
    DeviceKind,
    ExplainReport,
    HostSummary,
    SweepPoint,
    SweepReport,
    SystemsReport,
    cpu_on_threads,
)


def with_fields(report: Any) -> Any:
    """Return a report with the fields that its version did not have, as far as its texts tell."""
    match report:
        case SweepReport():
            return _sweep(report)
        case SystemsReport():
            systems = (
                replace(system, host=_host(system.host), sweeps=tuple(map(_sweep, system.sweeps)))
                for system in report.systems
            )
            return replace(report, systems=tuple(systems))
        case CheckReport() | ExplainReport():
            return replace(report, host=_host(report.host))
        case _:
            return report


def _host(host: HostSummary) -> HostSummary:
    return host if host.assumption else replace(host, assumption=host.source.partition("; ")[2])


def _sweep(report: SweepReport) -> SweepReport:
    threads = next((axis.name for axis in report.axes if axis.role is AxisRole.THREADS), None)
    report = replace(report, host=_host(report.host))
    if threads is None:
        return report
    return replace(report, points=tuple(_point(point, threads) for point in report.points))


def _point(point: SweepPoint, threads: str) -> SweepPoint:
    number = point.settings[threads]
    if point.kind is not DeviceKind.CPU or point.processor or not isinstance(number, int):
        return point
    ending = cpu_on_threads("", number)
    if not point.device.endswith(ending):
        return point
    return replace(point, processor=point.device.removesuffix(ending))
