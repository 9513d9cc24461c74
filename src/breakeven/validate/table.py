"""A table of measured steps: rows of a CSV file, checked cell by cell."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from breakeven.errors import BreakevenError
from breakeven.validate.table_row import Cells, TableRow

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
OPTIONAL_COLUMNS = ("h2d", "repeats")
_COLUMNS_HINT = f"the columns of a table are {', '.join(REQUIRED_COLUMNS)}, and optionally " + (
    " and ".join(OPTIONAL_COLUMNS)
)


def read_table(path: str | os.PathLike[str]) -> tuple[TableRow, ...]:
    """Return the rows of a table of measured steps.

    The file is CSV in UTF-8 with a line of column names. Further columns are ignored, as are
    lines without any character.

    Raises:
        BreakevenError: The file cannot be read, is no such table, or has no rows; a column is
            missing; a cell does not hold what its column allows; two rows have the same
            ``case_id``. A device or workload that is not known is no error here.
    """
    path = Path(path)
    records = _records(path)
    header_line, header = next(records, (1, []))
    columns = _columns(path, header_line, header)
    rows: list[TableRow] = []
    line_by_case_id: dict[str, int] = {}
    for line, record in records:
        if not record:
            continue
        if len(record) != len(columns):
            raise BreakevenError(
                f"{path}:{line}: {len(record)} cells in a table of {len(columns)} columns",
                hint='a cell that contains a comma is written in double quotes: "a, b"',
            )
        row = TableRow.from_cells(
            Cells(place=f"{path}:{line}", by_column=dict(zip(columns, record, strict=True)))
        )
        first_line = line_by_case_id.setdefault(row.case_id, line)
        if first_line != line:
            raise BreakevenError(
                f"{path}:{line}: case_id “{row.case_id}” is that of line {first_line} too",
                hint="give each row a case_id of its own",
            )
        rows.append(row)
    if not rows:
        raise BreakevenError(f"{path} has column names but no rows")
    return tuple(rows)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record, with the line that it begins on."""
    try:
        document = path.read_bytes()
    except OSError as error:
        raise BreakevenError(f"cannot read {path}: {error.strerror}") from error
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
