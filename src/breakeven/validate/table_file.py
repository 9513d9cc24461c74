"""The files of a table of measured steps: CSV, from which rows are read."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from breakeven.errors import BreakevenError
from breakeven.validate.cells import Cells
from breakeven.validate.table_row import MeasuredRow
from breakeven.verdict import UnreadRow

REQUIRED_COLUMNS = (
    "case_id",
    "source",
    "workload",
    "device",
    "num_devices",
    "precision",
    "batch_size",
    "phase",
    "optimizer",
    "host",
    "framework",
    "value_ms",
    "split",
    "note",
)
OPTIONAL_COLUMNS = (
    "h2d", "repeats", "memory_format", "compile", "attention", "grad_accum", "act_ckpt",
    "parallelism",
)  # fmt: skip
_COLUMNS_HINT = f"the columns of a table are {', '.join(REQUIRED_COLUMNS)}, and optionally " + (
    ", ".join(OPTIONAL_COLUMNS)
)


def read_table(*paths: str | os.PathLike[str]) -> tuple[MeasuredRow, ...]:
    """Return the rows of a table of measured steps, which may lie in several files.

    Each file is CSV in UTF-8 with a line of column names, compressed where its name ends in
    ``.gz``. Further columns are ignored, as are lines without any character.

    Raises:
        BreakevenError: A file cannot be read, is no such table, or has no rows; a column is
            missing; a cell does not hold what its column allows; two rows have the same
            ``case_id``. A device or workload that is not known is no error here.
    """
    rows = _read_files(paths)
    for row in rows:
        if isinstance(row, _Refused):
            raise row.error
    return tuple(row for row in rows if isinstance(row, MeasuredRow))


def read_what_is_readable(
    *paths: str | os.PathLike[str],
) -> tuple[tuple[MeasuredRow, ...], tuple[UnreadRow, ...]]:
    """Return the rows of a table, and those with a cell that is not understood.

    Raises:
        BreakevenError: As for `read_table`, but for cells; or no row can be read.
    """
    found = _read_files(paths)
    rows = tuple(row for row in found if isinstance(row, MeasuredRow))
    refused = [row for row in found if isinstance(row, _Refused)]
    if not rows:
        raise refused[0].error
    unread = [
        UnreadRow(
            case_id=row.case_id,
            place=row.place,
            reason=row.error.message.removeprefix(f"{row.place}: "),
            allowed=(row.error.hint or "").removeprefix("allowed: "),
        )
        for row in refused
    ]
    return rows, tuple(unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A row with a cell that does not hold what its column allows."""

    case_id: str
    place: str
    error: BreakevenError


def _read_files(paths: Sequence[str | os.PathLike[str]]) -> list[MeasuredRow | _Refused]:
    rows: list[MeasuredRow | _Refused] = []
    place_by_case_id: dict[str, str] = {}
    for path in map(Path, paths):
        own = _read_file(path, place_by_case_id)
        if not own:
            raise BreakevenError(f"{path} has column names but no rows")
        rows += own
    return rows


def _read_file(path: Path, place_by_case_id: dict[str, str]) -> list[MeasuredRow | _Refused]:
    """Return the rows of one file, and note where each ``case_id`` stands."""
    records = _records(path)
    header_line, header = next(records, (1, []))
    columns = _columns(path, header_line, header)
    rows: list[MeasuredRow | _Refused] = []
    for line, record in records:
        if not record:
            continue
        if len(record) != len(columns):
            raise BreakevenError(
                f"{path}:{line}: {len(record)} cells in a table of {len(columns)} columns",
                hint='a cell that contains a comma is written in double quotes: "a, b"',
            )
        place = f"{path}:{line}"
        cells = Cells(place=place, by_column=dict(zip(columns, record, strict=True)))
        try:
            row = MeasuredRow.from_cells(cells)
        except BreakevenError as error:
            rows.append(_Refused(case_id=cells.text("case_id"), place=place, error=error))
            continue
        first = place_by_case_id.setdefault(row.case_id, place)
        if first != place:
            same_file = first.removeprefix(f"{path}:")
            other = first if same_file == first else f"line {same_file}"
            raise BreakevenError(
                f"{place}: case_id “{row.case_id}” is that of {other} too",
                hint="give each row a case_id of its own",
            )
        rows.append(row)
    return rows


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record, with the line that it begins on."""
    try:
        document = path.read_bytes()
        if path.suffix == ".gz":
            document = gzip.decompress(document)
    except (OSError, EOFError) as error:
        # What gzip refuses has no number of its own.
        reason = getattr(error, "strerror", None) or str(error)
        raise BreakevenError(f"cannot read {path}: {reason}") from error
    try:
        # Spreadsheets put a byte order mark first.
        text = document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = document.count(b"\n", 0, error.start) + 1
        raise BreakevenError(
            f"{path}:{line}: byte {error.start} is not UTF-8", hint="save the table as CSV in UTF-8"
        ) from error
    if not text.strip():
        raise BreakevenError(f"{path} is empty", hint=_COLUMNS_HINT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise BreakevenError(f"{path}:{line}: not CSV: {error}") from error
        if record is None:
            return
        yield line, [cell.strip() for cell in record]
        # A quoted cell may hold line breaks, so that a record ends on a later line.
        line = reader.line_num + 1


def _columns(path: Path, line: int, header: list[str]) -> list[str]:
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        raise BreakevenError(
            f"{path}:{line}: missing {noun} {', '.join(missing)}", hint=_COLUMNS_HINT
        )
    twice = {column for column in header if column and header.count(column) > 1}
    if twice:
        raise BreakevenError(f"{path}:{line}: column {', '.join(sorted(twice))} is there twice")
    return header
