"""A measured step, as a row of a table tells it, and which rows of a table count."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from enum import StrEnum

from breakeven.cost import era_of
from breakeven.device import known_device
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.trace import Attention, MemoryFormat, NumberFormat, StepCase, TimedPhase
from breakeven.units import NS_PER_MS
from breakeven.validate.cells import Cells

# A step that takes longer than a day is a mistake of units.
_LONGEST_STEP_MS = 24 * 60 * 60 * 1000.0

# Phases whose timed region holds the zeroing of gradients.
_WITH_GRADIENTS = (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)

# "adamw (fused)": what tables write beside an optimizer is how it goes through its parameters.
_OPTIMIZER = re.compile(r"([a-z][a-z0-9_-]*)(?: \((foreach|fused|loop)\))?")
# Whatever fused kernel it was, torch's own is what a step is predicted with.
_FUSED_ATTENTION = re.compile(r"(?:flash|sdpa|mem|efficient|xformers|cudnn)")
# "A100 (form factor and memory not named)".
_REMARK = re.compile(r"\s*\([^()]*\)$")
# NVIDIA's scripts for language models mix precisions by apex's level O2: the network itself is in
# fp16, softmax and layer norm with it, and only the optimizer keeps fp32 besides. Their scripts for
# images convert by operator, as autocast does. Source: NVIDIA/DeepLearningExamples,
# PyTorch/LanguageModeling/BERT/run_squad.py.
_HALF_NETWORKS = re.compile(r"transformers:.*\nNVIDIA DeepLearningExamples\b")
_SHARDED = re.compile(r"fsdp|full_shard|shard_grad_op|zero-?[123]\b|tensor.parallel|pipeline", re.I)


class HostToDevice(StrEnum):
    """Whether the batch is copied to the device inside the timed region, and from what memory."""

    NONE = "none"
    PAGEABLE = "pageable"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured step, as its table tells it.

    Args:
        case_id: Name of the row, unique in its table.
        source: Who measured it.
        workload: Spec of the model.
        device: Name of the GPU, or of the CPU; the catalogue may not know it.
        num_devices: Devices that share the step.
        precision: How numbers are stored and multiplied.
        batch_size: Samples per device.
        phase: What is timed.
        optimizer: ``none`` or its name in lower case.
        h2d: Whether the batch is copied inside the timed region; ``none`` where that is not said.
        host: Processor of the machine, in the table's words; may be empty.
        framework: Software and its versions, in the table's words; may be empty.
        value_ns: Measured time of one step.
        repeats: Measurements of which ``value_ns`` is the median.
        split: The table's own word for a group of rows; may be empty.
        note: Anything else.
        memory_format: Of images; ``contiguous`` without such a column.
        compile: Mode of ``torch.compile``; ``none`` without such a column.
        attention: How attention was computed; unsaid without such a column.
        not_modelled: What of the step no prediction knows, such as sharded parameters; empty for
            nothing.
        caveats: What was assumed to read the row.
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
            BreakevenError: A cell does not hold what its column allows.
        """
        device, caveats = _device(cells.name("device"))
        phase = cells.choice("phase", TimedPhase)
        return cls(
            case_id=cells.name("case_id"),
            source=cells.text("source"),
            workload=cells.name("workload"),
            device=device,
            num_devices=cells.count("num_devices"),
            precision=cells.choice("precision", NumberFormat),
            batch_size=cells.count("batch_size"),
            phase=phase,
            optimizer=_optimizer(cells, phase),
            h2d=cells.choice("h2d", HostToDevice, default=HostToDevice.NONE),
            host=cells.text("host"),
            framework=cells.text("framework"),
            value_ns=NS_PER_MS
            * cells.positive("value_ms", most=_LONGEST_STEP_MS, unit="milliseconds"),
            repeats=cells.count("repeats", default=1),
            split=cells.text("split"),
            note=cells.text("note"),
            memory_format=cells.choice(
                "memory_format", MemoryFormat, default=MemoryFormat.CONTIGUOUS
            ),
            compile=cells.text("compile") or "none",
            attention=_attention(cells),
            not_modelled=_not_modelled(cells),
            caveats=caveats,
        )

    @property
    def case(self) -> StepCase:
        """Return which step was measured, without batch size, device and host."""
        return StepCase(
            workload=self.workload,
            phase=self.phase,
            number_format=self._number_format,
            optimizer=self.optimizer,
            h2d=self.h2d.value,
            zeroes_gradients=self.phase in _WITH_GRADIENTS
            and era_of(self.framework).is_before_torch_2,
            channels_last=self.memory_format is MemoryFormat.CHANNELS_LAST,
            attention=self.attention,
        )

    @property
    def _number_format(self) -> NumberFormat:
        is_half = self.precision is NumberFormat.AMP_FP16 and _HALF_NETWORKS.match(
            f"{self.workload}\n{self.note}"
        )
        return NumberFormat.FP16 if is_half else self.precision


def _device(text: str) -> tuple[str, tuple[Caveat, ...]]:
    """Return the name of a device without a remark in brackets, if it is one without."""
    bare = _REMARK.sub("", text)
    if not bare or bare == text or known_device(text):
        return text, ()
    taken = known_device(bare)
    if taken is None:
        return text, ()
    message = f"The table says “{text}”: taken as {taken.name}."
    return bare, (Caveat(code="assumed-device", message=message),)


def _optimizer(cells: Cells, phase: TimedPhase) -> str:
    """Return the optimizer in one word, ``adamw-fused``; of other phases none is timed."""
    found = _OPTIMIZER.fullmatch(cells.text("optimizer"))
    if found is None:
        if phase is not TimedPhase.TRAIN:
            return "none"
        raise cells.refused(
            "optimizer", "none, or a name in lower case such as sgd, adamw or adamw (fused)"
        )
    return "-".join(word for word in found.groups() if word)


def _attention(cells: Cells) -> Attention:
    text = cells.text("attention").casefold()
    if _FUSED_ATTENTION.match(text):
        return Attention.SDPA
    if text not in ("", "eager"):
        raise cells.refused("attention", "eager, sdpa, flash or empty")
    return Attention(text)


def _not_modelled(cells: Cells) -> str:
    """Return what a step does that no prediction knows, as the table's columns tell it."""
    found: list[str] = []
    if _SHARDED.search(f"{cells.text('parallelism')} {cells.text('note')}"):
        found.append("parameters shared out over devices")
    if cells.text("grad_accum") not in ("", "1"):
        found.append("gradients of several micro-batches")
    if cells.text("act_ckpt").casefold() in ("true", "1", "yes"):
        found.append("activations computed twice")
    return ", ".join(found)


# Numbers of a row that were measured are not what rows are chosen by.
_NO_KEYS = frozenset({"value_ns", "note", "caveats"})
_KEYS = tuple(field.name for field in fields_of(MeasuredRow) if field.name not in _NO_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Which rows of a table count: those with one of the values in each column.

    Args:
        values_by_column: Allowed texts of each column, in any case of letters.
    """

    values_by_column: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, conditions: Sequence[str]) -> RowFilter:
        """Return the filter of ``KEY=VALUE`` conditions; a key given twice allows both values.

        Raises:
            UsageError: A condition is not of this form, or its key is no column.
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
            BreakevenError: None does.
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
