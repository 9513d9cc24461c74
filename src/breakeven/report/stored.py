"""Reads stored reports back, or refuses them with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from breakeven.errors import StoredDataError
from breakeven.report.check_report import CheckReport
from breakeven.report.explain_report import ExplainReport
from breakeven.report.kinds import KINDS, Kind, kind_of
from breakeven.report.system_report import SystemTable
from breakeven.timing import Estimate
from breakeven.verdict import ProgramSummary, SweepReport, Verdict

_T = TypeVar("_T")
# Longest valid time: one year.
_LONGEST_NS = 3.2e16
# Tolerance by which the ends of a zero-width interval may pass its middle.
_ROUNDING = 1 + 1e-9

_RERUN = "write it again, with -o FILE --force"


def read_report(path: str | os.PathLike[str]) -> CheckReport:
    """Return the report in ``path``, as ``breakeven check TARGET -o FILE`` wrote it.

    Raises:
        StoredDataError: The file cannot be read, is cut off, is not a report, comes from another
            command or schema version, or was edited and no longer fits the schema.
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
        StoredDataError: The file cannot be read, is cut off, is not a report, has another schema
            version, or was edited and no longer fits the schema.
    """
    path = Path(path)
    try:
        document = path.read_bytes()
    except OSError as error:
        raise StoredDataError(f"cannot read {path}: {error.strerror}") from error
    if not document.strip():
        raise StoredDataError(f"{path} is cut off: it is empty", hint=_RERUN)
    kind = _kind(path, document)
    again = f"write it again: breakeven {kind.rerun}"
    try:
        report = _decode(document, kind.stored)
        _ensure_whole(report)
        return report
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} was edited or damaged: it does not fit its schema: {error}", hint=again
        ) from error
    except msgspec.DecodeError as error:
        # For example a name that is not UTF-8, which the check of the keys skips.
        raise StoredDataError(f"{path} is not JSON: {error}", hint=again) from error


def report_command(report: msgspec.Struct) -> str:
    """Return the command that makes such a report."""
    return kind_of(report).command


class _Version(msgspec.Struct):
    schema_version: int


def _kind(path: Path, document: bytes) -> Kind:
    """Return the kind of a document, by its keys, and check its schema version."""
    read_back = [kind for kind in KINDS if kind.key]
    commands = [kind.command for kind in read_back]
    writers = f"reports are written by: breakeven {', '.join(commands[:-1])} or {commands[-1]}"
    try:
        version = _decode(document, _Version).schema_version
        keys = _decode(document, dict[str, msgspec.Raw]).keys()
    except msgspec.ValidationError as error:
        raise StoredDataError(f"{path} is no report of breakeven: {error}", hint=writers) from error
    except msgspec.DecodeError as error:
        state = "is cut off" if "truncated" in str(error) else "is not JSON"
        raise StoredDataError(f"{path} {state}: {error}", hint=_RERUN) from error
    kind = next((kind for kind in read_back if kind.key in keys), None)
    if kind is None:
        wanted = ", ".join(kind.key for kind in read_back)
        raise StoredDataError(
            f"{path} is no report of breakeven: it has none of the keys {wanted}", hint=writers
        )
    if not 1 <= version <= kind.version:
        raise StoredDataError(
            f"{path} has schema version {version}; this breakeven reads version {kind.version}",
            hint="read it with the breakeven that wrote it, or write it again: "
            f"breakeven {kind.rerun}",
        )
    return kind


def _decode(document: bytes, kind: type[_T]) -> _T:
    """Decode JSON; raise every failure as a ``msgspec.DecodeError``."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def _ensure_whole(report: Any) -> None:
    """Check invariants that the types do not express and every renderer needs.

    Raises:
        msgspec.ValidationError: A part is missing or inconsistent.
    """

    def ensure(is_right: bool, message: str) -> None:
        if not is_right:
            raise msgspec.ValidationError(message)

    for found in _structs(report):
        times = None
        match found:
            # A figure in a table may also be a time of 0.
            case Estimate(value_ns=value) if value:
                times = found.low_ns, value, found.high_ns
            case _ if {"low_ns", "step_ns", "high_ns"} <= set(found.__struct_fields__):
                times = found.low_ns, found.step_ns, found.high_ns  # type: ignore[attr-defined]
            case Verdict() | ProgramSummary():
                low, ratio, high = found.low, found.speedup, found.high
                ensure(
                    0 < low <= ratio * _ROUNDING <= high * _ROUNDING**2,
                    f"a ratio of {ratio:g} with an interval from {low:g} to {high:g}",
                )
            case SweepReport():
                ensure(bool(found.axes), "a sweep without an axis")
                for point in found.points:
                    missing = [one.name for one in found.axes if one.name not in point.settings]
                    ensure(not missing, f"a point without a value of {', '.join(missing)}")
            case SystemTable():
                for row in found.rows:
                    ensure(
                        len(row.cells) == len(found.columns),
                        f"a row of {len(row.cells)} cells in a table of {len(found.columns)} "
                        "columns",
                    )
            case _:
                pass
        if times is not None:
            low, value, high = times
            ensure(
                0 < low <= value <= high < _LONGEST_NS,
                f"a time of {value:g} ns with an interval from {low:g} to {high:g} ns",
            )
    if isinstance(report, CheckReport | ExplainReport):
        what = "a check" if isinstance(report, CheckReport) else "an explanation"
        ensure(bool(report.results), f"{what} without a device")
    if isinstance(report, ExplainReport):
        attribution = report.attribution
        ensure(
            sum(part.time_ns for part in attribution.parts) == attribution.step_ns,
            "parts of the step that do not add up to it",
        )


def _structs(value: object) -> Iterator[msgspec.Struct]:
    """Yield a struct and all within it, except the recorded step, which has its own check."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            if name != "recording":
                yield from _structs(getattr(value, name))
    elif isinstance(value, tuple):
        for member in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _structs(member)  # pyright: ignore[reportUnknownArgumentType]
