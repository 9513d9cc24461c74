"""A table of measured steps: its CSV files, records, rows and filters."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from breakeven.cost import era_of
from breakeven.device import known_device
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.report import UnreadRow
from breakeven.trace import Attention, MemoryFormat, NumberFormat, StepCase, TimedPhase
from breakeven.units import NS_PER_MS

_Choice = TypeVar("_Choice", bound=StrEnum)

# float() and int() also accept "nan", "1_000" and digits of other scripts; refuse them here.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,10}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_COUNT = 1_000_000_000
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One record of a table.

    Args:
        place: File and line, for error messages.
        by_column: Text of each cell, without spaces around it.
    """

    place: str
    by_column: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell that may be empty; the empty text if there is no such column."""
        return self.by_column.get(column, "")

    def name(self, column: str) -> str:
        """Return a cell that must not be empty."""
        text = self.text(column)
        if not text:
            raise self.refused(column, "a name")
        return text

    def choice(
        self, column: str, choices: type[_Choice], *, default: _Choice | None = None
    ) -> _Choice:
        """Return the member that a cell names; ``default`` if it is empty or missing."""
        text = self.text(column) or default or ""
        if text not in [choice.value for choice in choices]:
            raise self.refused(column, ", ".join(choice.value for choice in choices))
        return choices(text)

    def count(self, column: str, *, default: int | None = None) -> int:
        """Return a whole number of at least 1; ``default`` if the cell is empty or missing."""
        text = self.text(column) or ("" if default is None else str(default))
        if not _WHOLE_NUMBER.fullmatch(text) or not 1 <= int(text) <= _LARGEST_COUNT:
            raise self.refused(column, f"a whole number from 1 to {_LARGEST_COUNT:,}")
        return int(text)

    def positive(self, column: str, *, most: float, unit: str) -> float:
        """Return a number above 0 and up to ``most``."""
        text = self.text(column)
        value = float(text) if _DECIMAL.fullmatch(text) else math.nan
        if not 0 < value <= most:
            raise self.refused(column, f"a number of {unit} above 0 and up to {most:,.0f}")
        return value

    def refused(self, column: str, allowed: str) -> BreakevenError:
        """Return the error for a cell whose value its column does not allow."""
        text = self.text(column)
        if len(text) > _SHOWN_CHARACTERS:
            text = text[:_SHOWN_CHARACTERS] + "…"
        shown = f"“{text}”" if text else "an empty cell"
        return BreakevenError(f"{self.place}: column {column}: {shown}", hint=f"allowed: {allowed}")


# A longer step indicates a mistake of units.
_LONGEST_STEP_MS = 24 * 60 * 60 * 1000.0

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


class HostToDevice(StrEnum):
    """Whether the timed region copies the batch to the device, and from which memory."""

    NONE = "none"
    PAGEABLE = "pageable"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
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
        h2d: Whether the timed region copies the batch; ``none`` if the table does not say.
        host: Processor of the machine, in the table's words; may be empty.
        framework: Software and its versions, in the table's words; may be empty.
        value_ns: Measured time of one step.
        repeats: Number of measurements; ``value_ns`` is their median.
        split: The table's own name for a group of rows; may be empty.
        note: Further remarks.
        memory_format: Format of images; ``contiguous`` without such a column.
        compile: Mode of ``torch.compile``; ``none`` without such a column.
        attention: Implementation of attention; unsaid without such a column.
        not_modelled: Parts of the step that no prediction covers, such as sharded parameters; empty
            for none.
        caveats: Assumptions made to read the row.
    """

    case_id: str
    source: str
    workload: str
    device: str
    num_devices: int
    precision: NumberFormat
    batch_size: int
    phase: TimedPhase
    optimizer: str
    h2d: HostToDevice
    host: str
    framework: str
    value_ns: float
    repeats: int
    split: str
    note: str
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    compile: str = "none"
    attention: Attention = Attention.UNSAID
    not_modelled: str = ""
    caveats: tuple[Caveat, ...] = ()

    @classmethod
    def from_cells(cls, cells: Cells) -> MeasuredRow:
        """Return the row that the cells describe.

        Raises:
            BreakevenError: If a column does not allow the value of its cell.
        """
        name, caveats = cells.name("device"), ()
        bare = _REMARK.sub("", name)
        if bare not in ("", name) and not known_device(name) and (taken := known_device(bare)):
            message = f"The table says “{name}”: taken as {taken.name}."
            name, caveats = bare, (Caveat(code="assumed-device", message=message),)
        phase = cells.choice("phase", TimedPhase)
        optimizer = _OPTIMIZER.fullmatch(cells.text("optimizer"))
        if optimizer is None and phase is TimedPhase.TRAIN:  # other phases have no optimizer
            allowed = "none, or a name in lower case such as sgd, adamw or adamw (fused)"
            raise cells.refused("optimizer", allowed)
        attention = cells.text("attention").casefold()
        if _FUSED_ATTENTION.match(attention):
            attention = Attention.SDPA
        elif attention not in ("", "eager"):
            raise cells.refused("attention", "eager, sdpa, flash or empty")
        not_modelled = {
            "parameters shared out over devices": _SHARDED.search(
                f"{cells.text('parallelism')} {cells.text('note')}"
            ),
            "gradients of several micro-batches": cells.text("grad_accum") not in ("", "1"),
            "activations computed twice": cells.text("act_ckpt").casefold() in ("true", "1", "yes"),
        }
        return cls(
            **{key: cells.text(key) for key in ("source", "host", "framework", "split", "note")},
            case_id=cells.name("case_id"),
            workload=cells.name("workload"),
            device=name,
            num_devices=cells.count("num_devices"),
            precision=cells.choice("precision", NumberFormat),
            batch_size=cells.count("batch_size"),
            phase=phase,
            optimizer="-".join(filter(None, optimizer.groups())) if optimizer else "none",
            h2d=cells.choice("h2d", HostToDevice, default=HostToDevice.NONE),
            value_ns=NS_PER_MS
            * cells.positive("value_ms", most=_LONGEST_STEP_MS, unit="milliseconds"),
            repeats=cells.count("repeats", default=1),
            memory_format=cells.choice(
                "memory_format", MemoryFormat, default=MemoryFormat.CONTIGUOUS
            ),
            compile=cells.text("compile") or "none",
            attention=Attention(attention),
            not_modelled=", ".join(text for text, is_so in not_modelled.items() if is_so),
            caveats=caveats,
        )

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
            h2d=self.h2d.value,
            zeroes_gradients=self.phase in _WITH_GRADIENTS
            and era_of(self.framework).is_before_torch_2,
            channels_last=self.memory_format is MemoryFormat.CHANNELS_LAST,
            attention=self.attention,
        )


# Fields by which rows cannot be filtered.
_NO_KEYS = frozenset({"value_ns", "note", "caveats"})
_KEYS = tuple(field.name for field in fields_of(MeasuredRow) if field.name not in _NO_KEYS)


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
    "h2d", "repeats", "memory_format", "compile", "attention", "grad_accum", "act_ckpt",
    "parallelism",
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
            cells = Cells(place=place, by_column=dict(zip(columns, record, strict=True)))
            try:
                row = MeasuredRow.from_cells(cells)
            except BreakevenError as error:
                unread.append(
                    UnreadRow(
                        case_id=cells.text("case_id"),
                        place=place,
                        reason=error.message.removeprefix(f"{place}: "),
                        allowed=(error.hint or "").removeprefix("allowed: "),
                    )
                )
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
        if len(rows) + len(unread) == num_before:
            raise BreakevenError(f"{path} has column names but no rows")
    if unread and not rows:
        raise _error_of(unread[0])
    return tuple(rows), tuple(unread)


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
