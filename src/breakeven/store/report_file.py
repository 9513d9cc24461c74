"""A report in a file: written whole or not at all, read back or refused with the reason."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from breakeven.errors import BreakevenError, StoredDataError
from breakeven.store.earlier_report import Report, with_fields
from breakeven.timing import Estimate
from breakeven.verdict import (
    EXPLAIN_SCHEMA_VERSION,
    SCHEMA_VERSION,
    SWEEP_SCHEMA_VERSION,
    SYSTEMS_SCHEMA_VERSION,
    CheckReport,
    DeviceResult,
    ExplainReport,
    ProgramSummary,
    SweepPoint,
    SweepReport,
    SystemReport,
    SystemsReport,
    Verdict,
)

_T = TypeVar("_T")
# A year: no step takes so long.
_LONGEST_NS = 3.2e16
# By so much the ends of an interval that has no width may pass its middle.
_ROUNDING = 1 + 1e-9

_WRITERS = "reports are written by: breakeven check, explain, sweep or workloads with -o FILE"
_RERUN = "write it again, with -o FILE --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of report, and the key that no other kind has.

    All of its schema versions so far are read: each has only added to the one before.
    """

    command: str
    key: str
    version: int
    type: type[Report]


_KINDS = (
    # Before check, since an explanation has a verdict too.
    _Kind(command="explain", key="attribution", version=EXPLAIN_SCHEMA_VERSION, type=ExplainReport),
    _Kind(command="check", key="verdict", version=SCHEMA_VERSION, type=CheckReport),
    _Kind(command="sweep", key="axes", version=SWEEP_SCHEMA_VERSION, type=SweepReport),
    _Kind(command="workloads", key="systems", version=SYSTEMS_SCHEMA_VERSION, type=SystemsReport),
)


class _Header(msgspec.Struct):
    schema_version: int
    attribution: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    verdict: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    axes: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    systems: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def ensure_writable(path: Path, *, force: bool) -> None:
    """Check that ``write_document`` can write ``path``, before the work whose result goes there.

    Args:
        path: The file to write.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or its folder does not or cannot be written.
    """
    _refuse_existing(path, force=force)
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BreakevenError(
            f"cannot write {path}: there is no folder {folder}",
            hint="make the folder first, or choose another file",
        )
    partial = _partial_file(path)
    try:
        _write_new(partial, b"")
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def write_document(path: Path, document: bytes, *, force: bool) -> None:
    """Write ``document`` to ``path`` atomically: another program sees all of it or nothing.

    Args:
        path: The file to write; a link is followed.
        document: A JSON document.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or cannot be written.
    """
    partial = _partial_file(path)
    try:
        _write_new(partial, document)
        _refuse_existing(path, force=force)
        partial.replace(path.resolve())
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


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


def read_document(path: str | os.PathLike[str]) -> Report:
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
        report = _decode(document, kind.type)
        _ensure_whole(report)
        return with_fields(report)
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} was edited or damaged: it does not fit its schema: {error}",
            hint=_rerun(kind.command),
        ) from error
    except msgspec.DecodeError as error:
        # Such as a name that is not UTF-8, which the look at its keys has skipped.
        raise StoredDataError(f"{path} is not JSON: {error}", hint=_rerun(kind.command)) from error


def report_command(report: Report) -> str:
    """Return the command that finds out such a report."""
    return next(kind.command for kind in _KINDS if kind.type is type(report))


def _kind(path: Path, document: bytes) -> _Kind:
    """Return which command wrote a document, by its keys, and check its schema version."""
    try:
        header = _decode(document, _Header)
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} is no report of breakeven: {error}", hint=_WRITERS
        ) from error
    except msgspec.DecodeError as error:
        state = "is cut off" if "truncated" in str(error) else "is not JSON"
        raise StoredDataError(f"{path} {state}: {error}", hint=_RERUN) from error
    kind = next((k for k in _KINDS if getattr(header, k.key) is not msgspec.UNSET), None)
    if kind is None:
        keys = ", ".join(kind.key for kind in _KINDS)
        raise StoredDataError(
            f"{path} is no report of breakeven: it has none of the keys {keys}", hint=_WRITERS
        )
    if not 1 <= header.schema_version <= kind.version:
        raise StoredDataError(
            f"{path} has schema version {header.schema_version}; "
            f"this breakeven reads version {kind.version}",
            hint=f"read it with the breakeven that wrote it, or {_rerun(kind.command)}",
        )
    return kind


def _decode(document: bytes, kind: type[_T]) -> _T:
    """Decode JSON; whatever is wrong with it is a ``msgspec.DecodeError``."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def _ensure_whole(report: Report) -> None:
    """Check what the types do not tell, and every renderer relies on.

    Raises:
        msgspec.ValidationError: A part is missing.
    """
    for low_ns, value_ns, high_ns in _times(report):
        if not 0 < low_ns <= value_ns <= high_ns < _LONGEST_NS:
            raise msgspec.ValidationError(
                f"a time of {value_ns:g} ns with an interval from {low_ns:g} to {high_ns:g} ns"
            )
    for ratio in _ratios(report):
        if not 0 < ratio.low <= ratio.speedup * _ROUNDING <= ratio.high * _ROUNDING**2:
            raise msgspec.ValidationError(
                f"a ratio of {ratio.speedup:g} with an interval from {ratio.low:g} to "
                f"{ratio.high:g}"
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


def _ratios(report: Report) -> Iterator[Verdict | ProgramSummary]:
    """Yield what has a ratio of times with its interval."""
    if isinstance(report, CheckReport | ExplainReport):
        yield report.verdict
        if report.program is not None:
            yield report.program


def _times(report: Report) -> Iterator[tuple[float, float, float]]:
    """Yield all times with their intervals: low, value, high."""
    results: list[DeviceResult | SweepPoint] = []
    match report:
        case CheckReport():
            results += report.results
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


def _rerun(command: str) -> str:
    target = "NAME" if command == "workloads" else "TARGET"
    return f"write it again: breakeven {command} {target} -o FILE --force"


def _refuse_existing(path: Path, *, force: bool) -> None:
    if not os.path.lexists(path):
        return
    if path.is_dir():
        raise BreakevenError(
            f"cannot write {path}: it is a folder", hint="name a file, such as report.json"
        )
    if path.exists() and not path.is_file():
        raise BreakevenError(
            f"cannot write {path}: it is not a regular file",
            hint="use --json to send the document to a pipe or device",
        )
    if not force:
        raise BreakevenError(
            f"{path} exists and is not overwritten", hint="add --force, or choose another file"
        )


def _partial_file(path: Path) -> Path:
    # In the same folder, since a rename is atomic only within one file system.
    # Its name is nobody else's: one that was left by a process that was killed is in no way.
    return path.resolve().parent / f".breakeven-{secrets.token_hex(8)}.partial"


def _write_new(path: Path, document: bytes) -> None:
    with path.open("xb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError) -> BreakevenError:
    return BreakevenError(
        f"cannot write {path}: {error.strerror}", hint="choose another file with -o"
    )
