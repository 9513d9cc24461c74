"""A table of measured steps: its CSV files, records, rows and filters."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from breakeven.cost import era_of
from breakeven.device import known_device
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.report import UnreadRow
from breakeven.trace import Attention, MemoryFormat, NumberFormat, StepCase, TimedPhase
from breakeven.units import NS_PER_MS

_SHOWN_CHARACTERS = 60
_LARGEST_COUNT = 1_000_000_000
# A longer step indicates a mistake of units.
_LONGEST_STEP_MS = 24 * 60 * 60 * 1000.0
_Name = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=_LARGEST_COUNT)]
# What each column allows, for the reader of an error.
_ALLOWED = {
    **dict.fromkeys(("case_id", "workload", "device"), "a name"),
    **dict.fromkeys(("num_devices", "batch_size"), f"a whole number from 1 to {_LARGEST_COUNT:,}"),
    "value_ms": f"a number of milliseconds above 0 and up to {_LONGEST_STEP_MS:,.0f}",
    "precision": ", ".join(NumberFormat),
    "phase": ", ".join(TimedPhase),
    "optimizer": "none, or a name in lower case such as sgd, adamw or adamw (fused)",
    "h2d": "none, pageable, pinned",
    "memory_format": ", ".join(MemoryFormat),
    "attention": "eager, sdpa, flash or empty",
}

# Phases whose timed region holds the zeroing of gradients.
_WITH_GRADIENTS = (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)

# "adamw (fused)": tables add in parentheses how an optimizer iterates over its parameters.
_OPTIMIZER = re.compile(r"([a-z][a-z0-9_-]*)(?: \((foreach|fused|loop)\))?")
# Predict any fused kernel as torch's own.
_FUSED_ATTENTION = re.compile(r"(?:flash|sdpa|mem|efficient|xformers|cudnn)")
# "A100 (form factor and memory not named)".
_REMARK = re.compile(r"\s*\([^()]*\)$")
# NVIDIA's scripts for language models use apex's mixed precision level O2: the network, softmax and
# layer norm included, is in fp16, and only the optimizer also keeps fp32. Their scripts for images
# convert per operator, as autocast does. Source: NVIDIA/DeepLearningExamples,
# PyTorch/LanguageModeling/BERT/run_squad.py.
_HALF_NETWORKS = re.compile(r"transformers:.*\nNVIDIA DeepLearningExamples\b")
_SHARDED = re.compile(r"fsdp|full_shard|shard_grad_op|zero-?[123]\b|tensor.parallel|pipeline", re.I)


class MeasuredRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step, as its table describes it.

    Args:
        case_id: Name of the row, unique in its table.
        source: Publisher of the measurement.
        workload: Spec of the model.
        device: Name of the GPU or CPU; it may be missing from the catalogue.
        num_devices: Devices that share the step.
        precision: Number format for storage and products.
        batch_size: Samples per device.
        phase: The timed phase.
        optimizer: ``none`` or its name in lower case.
        host: Processor of the machine, in the table's words; may be empty.
        framework: Software and its versions, in the table's words; may be empty.
        value_ms: Measured time of one step, in milliseconds.
        split: The table's own name for a group of rows; may be empty.
        note: Further remarks.
        h2d: Memory from which the timed region copies the batch; ``none`` if the table does not
            say.
        memory_format: Format of images; ``contiguous`` without such a column.
        compile: Mode of ``torch.compile``; ``none`` without such a column.
        attention: Implementation of attention; unsaid without such a column.
        not_modelled: Parts of the step that no prediction covers, such as sharded parameters; empty
            for none.
        caveats: Assumptions made to read the row.
    """

    case_id: _Name
    source: str
    workload: _Name
    device: _Name
    num_devices: _Count
    precision: NumberFormat
    batch_size: _Count
    phase: TimedPhase
    optimizer: _Name
    host: str
    framework: str
    value_ms: Annotated[float, Meta(gt=0, le=_LONGEST_STEP_MS)]
    split: str
    note: str
    h2d: Literal["none", "pageable", "pinned"] = "none"
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    compile: str = "none"
    attention: Attention = Attention.UNSAID
    not_modelled: str = ""
    caveats: tuple[Caveat, ...] = ()

    @classmethod
    def from_cells(cls, cells: Mapping[str, str]) -> MeasuredRow:
        """Return the row that the cells describe, by column.

        Raises:
            msgspec.ValidationError: A column does not allow the value of its cell.
        """
        text = defaultdict(str, cells)
        name, caveats = text["device"], ()
        bare = _REMARK.sub("", name)
        if bare not in ("", name) and not known_device(name) and (taken := known_device(bare)):
            message = f"The table says “{name}”: taken as {taken.name}."
            name, caveats = bare, (Caveat(code="assumed-device", message=message),)
        optimizer = "none"
        if text["phase"] == TimedPhase.TRAIN:  # other phases have no optimizer
            found = _OPTIMIZER.fullmatch(text["optimizer"])
            optimizer = "-".join(filter(None, found.groups())) if found else ""
        attention = text["attention"].casefold()
        not_modelled = {
            "parameters shared out over devices": _SHARDED.search(
                f"{text['parallelism']} {text['note']}"
            ),
            "gradients of several micro-batches": text["grad_accum"] not in ("", "1"),
            "activations computed twice": text["act_ckpt"].casefold() in ("true", "1", "yes"),
        }
        given = {key: cell for key, cell in cells.items() if cell or key in REQUIRED_COLUMNS}
        given |= {
            "device": name,
            "optimizer": optimizer,
            "attention": Attention.SDPA if _FUSED_ATTENTION.match(attention) else attention,
            "not_modelled": ", ".join(part for part, is_so in not_modelled.items() if is_so),
            "caveats": caveats,
        }
        return msgspec.convert(given, cls, strict=False)

    @property
    def value_ns(self) -> float:
        """Return the measured time of one step."""
        return NS_PER_MS * self.value_ms

    @property
    def case(self) -> StepCase:
        """The measured step, without batch size, device and host."""
        is_half = self.precision is NumberFormat.AMP_FP16 and _HALF_NETWORKS.match(
            f"{self.workload}\n{self.note}"
        )
        return StepCase(
            workload=self.workload,
            phase=self.phase,
            number_format=NumberFormat.FP16 if is_half else self.precision,
            optimizer=self.optimizer,
            h2d=self.h2d,
            zeroes_gradients=self.phase in _WITH_GRADIENTS
            and era_of(self.framework).is_before_torch_2,
            channels_last=self.memory_format is MemoryFormat.CHANNELS_LAST,
            attention=self.attention,
        )


# Fields by which rows cannot be filtered.
_NO_KEYS = frozenset({"value_ms", "note", "caveats"})
_KEYS = tuple(name for name in MeasuredRow.__struct_fields__ if name not in _NO_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """A filter for rows: those with an allowed value in each column.

    Args:
        values_by_column: Allowed texts of each column; case does not matter.
    """

    values_by_column: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, conditions: Sequence[str]) -> RowFilter:
        """Return the filter of ``KEY=VALUE`` conditions; a repeated key allows each value.

        Raises:
            UsageError: If a condition has another form, or its key is no column.
        """
        values: dict[str, tuple[str, ...]] = {}
        for condition in conditions:
            key, equals, value = condition.partition("=")
            if not equals or key not in _KEYS:
                raise UsageError(
                    f"“{condition}” is no condition KEY=VALUE",
                    hint=f"KEY is one of {', '.join(_KEYS)}",
                )
            values[key] = (*values.get(key, ()), value)
        return cls(values_by_column=values)

    def select(self, rows: Sequence[MeasuredRow]) -> tuple[MeasuredRow, ...]:
        """Return the rows that meet every condition.

        Raises:
            BreakevenError: If no row does.
        """
        selected = tuple(rows)
        for column, values in self.values_by_column.items():
            wanted = {value.casefold() for value in values}
            present = dict.fromkeys(str(getattr(row, column)) for row in selected)
            selected = tuple(
                row for row in selected if str(getattr(row, column)).casefold() in wanted
            )
            if not selected:
                some = ", ".join(f"“{value}”" for value in list(present)[:12])
                raise BreakevenError(
                    f"no row has {column} {' or '.join(f'“{value}”' for value in values)}",
                    hint=f"values of {column} in these rows: {some}",
                )
        return selected


REQUIRED_COLUMNS = (
    "case_id", "source", "workload", "device", "num_devices", "precision", "batch_size", "phase",
    "optimizer", "host", "framework", "value_ms", "split", "note",
)  # fmt: skip
OPTIONAL_COLUMNS = (
    "h2d", "memory_format", "compile", "attention", "grad_accum", "act_ckpt", "parallelism",
)  # fmt: skip
_COLUMNS_HINT = f"the columns of a table are {', '.join(REQUIRED_COLUMNS)}, and optionally " + (
    ", ".join(OPTIONAL_COLUMNS)
)


def read_table(*paths: str | os.PathLike[str]) -> tuple[MeasuredRow, ...]:
    """Return the rows of a table of measured steps, which may have several files.

    Each file is CSV in UTF-8 with a line of column names, compressed if its name ends in ``.gz``.
    Further columns and empty lines are ignored.

    Raises:
        BreakevenError: If a file cannot be read, is no such table, or has no rows; if a column is
            missing or does not allow the value of a cell; or if two rows have the same
            ``case_id``. An unknown device or workload is no error here.
    """
    rows, unread = read_what_is_readable(*paths)
    if unread:
        raise _error_of(unread[0])
    return rows


def read_what_is_readable(
    *paths: str | os.PathLike[str],
) -> tuple[tuple[MeasuredRow, ...], tuple[UnreadRow, ...]]:
    """Return the rows of a table, and separately those with a cell that cannot be parsed.

    Raises:
        BreakevenError: As for `read_table`, except for cells; or if no row can be read.
    """
    rows: list[MeasuredRow] = []
    unread: list[UnreadRow] = []
    place_by_case_id: dict[str, str] = {}
    for path in map(Path, paths):
        records = _records(path)
        header_line, columns = next(records, (1, []))
        _check_columns(f"{path}:{header_line}", columns)
        num_before = len(rows) + len(unread)
        for line, record in records:
            if not record:
                continue
            place = f"{path}:{line}"
            if len(record) != len(columns):
                raise BreakevenError(
                    f"{place}: {len(record)} cells in a table of {len(columns)} columns",
                    hint='a cell that contains a comma is written in double quotes: "a, b"',
                )
            cells = dict(zip(columns, record, strict=True))
            try:
                row = MeasuredRow.from_cells(cells)
            except msgspec.ValidationError as error:
                unread.append(_unread(cells, place, error))
                continue
            first = place_by_case_id.setdefault(row.case_id, place)
            if first != place:
                raise BreakevenError(
                    f"{place}: case_id “{row.case_id}” is that of {first} too",
                    hint="give each row a case_id of its own",
                )
            rows.append(row)
        if len(rows) + len(unread) == num_before:
            raise BreakevenError(f"{path} has column names but no rows")
    if unread and not rows:
        raise _error_of(unread[0])
    return tuple(rows), tuple(unread)


def _unread(cells: Mapping[str, str], place: str, error: msgspec.ValidationError) -> UnreadRow:
    """Return the row that an error is about; the error ends with its column."""
    column = str(error).rpartition("$.")[2].rstrip("`")
    text = cells[column]
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return UnreadRow(
        case_id=cells["case_id"],
        place=place,
        reason=f"column {column}: " + (f"“{shown}”" if text else "an empty cell"),
        allowed=_ALLOWED[column],
    )


def _error_of(row: UnreadRow) -> BreakevenError:
    return BreakevenError(f"{row.place}: {row.reason}", hint=f"allowed: {row.allowed}")


def _check_columns(place: str, header: list[str]) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        raise BreakevenError(f"{place}: missing {noun} {', '.join(missing)}", hint=_COLUMNS_HINT)
    twice = {column for column in header if column and header.count(column) > 1}
    if twice:
        raise BreakevenError(f"{place}: column {', '.join(sorted(twice))} is there twice")


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record, with the number of its first line."""
    try:
        document = path.read_bytes()
        if path.suffix == ".gz":
            document = gzip.decompress(document)
    except (OSError, EOFError) as error:
        # Errors of gzip have no ``strerror``.
        reason = getattr(error, "strerror", None) or str(error)
        raise BreakevenError(f"cannot read {path}: {reason}") from error
    try:
        # Spreadsheets write a byte order mark first.
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
        # A quoted cell may contain line breaks, so a record may end on a later line.
        line = reader.line_num + 1
