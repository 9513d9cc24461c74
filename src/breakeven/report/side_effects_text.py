"""What became of what a script does besides training, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from breakeven.report.text import plural, printable
from breakeven.trace import FileChange, FileWrite, FileWrites, WriteProtection
from breakeven.units import format_bytes
from breakeven.verdict import CheckReport, ExplainReport, SweepReport, TuneReport

# Files that are named; all that are known are in the JSON report.
_MAX_NAMES = 3


def side_effect_lines(
    report: CheckReport | ExplainReport | SweepReport | TuneReport,
) -> Iterator[tuple[str, str]]:
    """Yield what the script wrote and logged, and where that went, where there is any.

    Args:
        report: Of the runs.

    Yields:
        The name of the fact, and its text.
    """
    writes = report.writes
    if writes is not None and (
        writes.num_files or writes.protection is not WriteProtection.OVERLAY
    ):
        yield "files", _writes_text(writes)
    if report.quiet_trackers:
        names = ", ".join(printable(name, 40) for name in report.quiet_trackers)
        yield "trackers", f"nothing was logged to {names} (--keep-trackers lets them be)"


def _writes_text(writes: FileWrites) -> str:
    if writes.protection is WriteProtection.NONE:
        return "written for real, as asked for"
    led = " (what programs and libraries write past Python is real)"
    limit = led if writes.protection is WriteProtection.REDIRECTED else ""
    if not writes.num_files:
        return f"none written{limit}"
    names = [_name(write) for write in writes.files[:_MAX_NAMES]]
    if writes.num_files > len(names):
        names.append("…")
    size = f", {format_bytes(writes.num_bytes, 2)}" if writes.num_bytes else ""
    written = f"{plural(writes.num_files, 'file')}{size} ({', '.join(names)})"
    return f"{written}, written to a layer that is thrown away{limit}"


def _name(write: FileWrite) -> str:
    name = printable(PurePath(write.path).name, 40)
    return f"{name} deleted" if write.change is FileChange.DELETED else name
