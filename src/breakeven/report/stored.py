"""A stored report, read back or refused with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from breakeven.errors import StoredDataError
from breakeven.report.kinds import KINDS, Kind, kind_of
from breakeven.timing import Estimate
from breakeven.verdict import (
    AxisRole,
    CheckReport,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    HostSummary,
    SweepPoint,
    SweepReport,
    SystemReport,
    SystemsReport,
    cpu_on_threads,
)

_T = TypeVar("_T")
# A year: no step takes so long.
_LONGEST_NS = 3.2e16
# By so much the ends of an interval that has no width may pass its middle.
_ROUNDING = 1 + 1e-9

_RERUN = "write it again, with -o FILE --force"


def read_report(path: str | os.PathLike[str]) -> CheckReport:
    """Return the report in ``path``, as ``breakeven check TARGET -o FILE`` wrote it.

    Raises:
        StoredDataError: The file cannot be read, is cut off, is no report, is one of another
            command or schema version, or was edited so that it no longer fits the schema.
    """
    report = read_document(path)
    if not isinstance(report, CheckReport):
        raise StoredDataError(
            f"{path} is a report of breakeven {report_command(report)}, not of breakeven check",
            hint="read_document reads all of them, and so does: breakeven report FILE",
        )
    return report


def read_document(path: str | os.PathLike[str]) -> Any:
    """Return the report in ``path``, as any command wrote it with ``-o FILE``.

    Raises:
        StoredDataError: The file cannot be read, is cut off, is no report, is of another schema
            version, or was edited so that it no longer fits the schema.
    """
    path = Path(path)
    try:
        document = path.read_bytes()
    except OSError as error:
        raise StoredDataError(f"cannot read {path}: {error.strerror}") from error
    if not document.strip():
        raise StoredDataError(f"{path} is cut off: it is empty", hint=_RERUN)
    kind = _kind(path, document)
    try:
        report = _decode(document, kind.stored)
        _ensure_whole(report)
        return with_fields(report)
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} was edited or damaged: it does not fit its schema: {error}", hint=_rerun(kind)
        ) from error
    except msgspec.DecodeError as error:
        # Such as a name that is not UTF-8, which the look at its keys has skipped.
        raise StoredDataError(f"{path} is not JSON: {error}", hint=_rerun(kind)) from error


def report_command(report: msgspec.Struct) -> str:
    """Return the command that finds out such a report."""
    return kind_of(report).command


class _Version(msgspec.Struct):
    schema_version: int


def _kind(path: Path, document: bytes) -> Kind:
    """Return which command wrote a document, by its keys, and check its schema version."""
    try:
        version = _decode(document, _Version).schema_version
        keys = _decode(document, dict[str, msgspec.Raw]).keys()
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} is no report of breakeven: {error}", hint=_writers()
        ) from error
    except msgspec.DecodeError as error:
        state = "is cut off" if "truncated" in str(error) else "is not JSON"
        raise StoredDataError(f"{path} {state}: {error}", hint=_RERUN) from error
    kind = next((kind for kind in KINDS if kind.key in keys), None)
    if kind is None:
        wanted = ", ".join(kind.key for kind in KINDS if kind.key)
        raise StoredDataError(
            f"{path} is no report of breakeven: it has none of the keys {wanted}", hint=_writers()
        )
    if not 1 <= version <= kind.version:
        raise StoredDataError(
            f"{path} has schema version {version}; this breakeven reads version {kind.version}",
            hint=f"read it with the breakeven that wrote it, or {_rerun(kind)}",
        )
    return kind


def _decode(document: bytes, kind: type[_T]) -> _T:
    """Decode JSON; whatever is wrong with it is a ``msgspec.DecodeError``."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def _ensure_whole(report: Any) -> None:
    """Check what the types do not tell, and every renderer relies on.

    Raises:
        msgspec.ValidationError: A part is missing.
    """
    for low_ns, value_ns, high_ns in _times(report):
        if not 0 < low_ns <= value_ns <= high_ns < _LONGEST_NS:
            raise msgspec.ValidationError(
                f"a time of {value_ns:g} ns with an interval from {low_ns:g} to {high_ns:g} ns"
            )
    for low, ratio, high in _ratios(report):
        if not 0 < low <= ratio * _ROUNDING <= high * _ROUNDING**2:
            raise msgspec.ValidationError(
                f"a ratio of {ratio:g} with an interval from {low:g} to {high:g}"
            )
    match report:
        case CheckReport():
            if not report.results:
                raise msgspec.ValidationError("a check without a device")
        case ExplainReport():
            if not report.results:
                raise msgspec.ValidationError("an explanation without a device")
            if sum(part.time_ns for part in report.attribution.parts) != report.attribution.step_ns:
                raise msgspec.ValidationError("parts of the step that do not add up to it")
        case SweepReport():
            _ensure_whole_sweep(report)
        case SystemsReport():
            for system in report.systems:
                for sweep in system.sweeps:
                    _ensure_whole_sweep(sweep)
                _ensure_whole_tables(system)


def _ratios(report: Any) -> Iterator[tuple[float, float, float]]:
    """Yield all ratios of times with their intervals: low, ratio, high."""
    if isinstance(report, CheckReport | ExplainReport):
        for found in (report.verdict, report.program):
            if found is not None:
                yield found.low, found.speedup, found.high


def _times(report: Any) -> Iterator[tuple[float, float, float]]:
    """Yield all times with their intervals: low, value, high."""
    results: list[DeviceResult | SweepPoint] = []
    match report:
        case CheckReport():
            results += (*report.results, *report.absent_cpus)
            # Rows of the same table, with fields of their own.
            generated = () if report.generated is None else (report.generated,)
            compiled = () if report.compiled is None else report.compiled.results
            for row in (*generated, *compiled):
                yield row.low_ns, row.step_ns, row.high_ns
        case ExplainReport():
            results += report.results
            results += (result for step in report.plan for result in step.results)
        case SweepReport():
            results += report.points
        case SystemsReport():
            for system in report.systems:
                results += (point for sweep in system.sweeps for point in sweep.points)
                cells = (
                    cell for table in system.tables for row in table.rows for cell in row.cells
                )
                for cell in cells:
                    if isinstance(cell, Estimate) and cell.value_ns:  # 0 is a time, too
                        yield cell.low_ns, cell.value_ns, cell.high_ns
    for result in results:
        yield result.low_ns, result.step_ns, result.high_ns


def _ensure_whole_sweep(sweep: SweepReport) -> None:
    if not sweep.axes:
        raise msgspec.ValidationError("a sweep without an axis")
    for point in sweep.points:
        missing = [axis.name for axis in sweep.axes if axis.name not in point.settings]
        if missing:
            raise msgspec.ValidationError(f"a point without a value of {missing[0]}")


def _ensure_whole_tables(system: SystemReport) -> None:
    for table in system.tables:
        for row in table.rows:
            if len(row.cells) != len(table.columns):
                raise msgspec.ValidationError(
                    f"a row of {len(row.cells)} cells in a table of {len(table.columns)} columns"
                )


def _rerun(kind: Kind) -> str:
    return f"write it again: breakeven {kind.rerun}"


def _writers() -> str:
    commands = [kind.command for kind in KINDS if kind.key]
    return f"reports are written by: breakeven {', '.join(commands[:-1])} or {commands[-1]}"


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
