"""One measured step of a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from breakeven.cost import era_of
from breakeven.trace import NumberFormat, StepCase, TimedPhase
from breakeven.units import NS_PER_MS
from breakeven.validate.cells import Cells

# A step that takes longer than a day is a mistake of units.
_LONGEST_STEP_MS = 24 * 60 * 60 * 1000.0

# Phases whose timed region holds the zeroing of gradients.
_WITH_GRADIENTS = (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)


class HostToDevice(StrEnum):
    """Whether the batch is copied to the device inside the timed region, and from what memory."""

    NONE = "none"
    PAGEABLE = "pageable"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
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
        h2d: Whether the batch is copied inside the timed region; ``none`` without such a column.
        host: Processor of the machine, in the table's words; may be empty.
        framework: Software and its versions, in the table's words; may be empty.
        value_ns: Measured time of one step.
        repeats: Measurements of which ``value_ns`` is the median.
        split: The table's own word for a group of rows; may be empty.
        note: Anything else.
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

    @classmethod
    def from_cells(cls, cells: Cells) -> TableRow:
        """Return the row that the cells describe.

        Raises:
            BreakevenError: A cell does not hold what its column allows.
        """
        return cls(
            case_id=cells.name("case_id"),
            source=cells.text("source"),
            workload=cells.name("workload"),
            device=cells.name("device"),
            num_devices=cells.count("num_devices"),
            precision=cells.choice("precision", NumberFormat),
            batch_size=cells.count("batch_size"),
            phase=cells.choice("phase", TimedPhase),
            optimizer=cells.word("optimizer"),
            h2d=cells.choice("h2d", HostToDevice, default=HostToDevice.NONE),
            host=cells.text("host"),
            framework=cells.text("framework"),
            value_ns=NS_PER_MS
            * cells.positive("value_ms", most=_LONGEST_STEP_MS, unit="milliseconds"),
            repeats=cells.count("repeats", default=1),
            split=cells.text("split"),
            note=cells.text("note"),
        )

    @property
    def case(self) -> StepCase:
        """Return which step was measured, without batch size, device and host."""
        return StepCase(
            workload=self.workload,
            phase=self.phase,
            number_format=self.precision,
            optimizer=self.optimizer,
            h2d=self.h2d.value,
            zeroes_gradients=self.phase in _WITH_GRADIENTS
            and era_of(self.framework).is_before_torch_2,
        )
