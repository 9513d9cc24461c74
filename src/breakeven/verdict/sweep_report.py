"""The answer to `breakeven sweep`, as values: step times over a grid, and where they cross.

The JSON schema is generated from these types, so a changed key is a changed contract: raise
``SWEEP_SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.errors import Caveat
from breakeven.simulate import Bound
from breakeven.timing import Source
from breakeven.trace import FileWrites
from breakeven.verdict.report import Crossover, Curve, HostSummary, NoCrossover
from breakeven.verdict.results import DeviceKind, Nanoseconds

SWEEP_SCHEMA_VERSION = 2

AxisValue = int | float | str


class AxisRole(StrEnum):
    """What an axis changes."""

    BATCH_SIZE = "batch_size"
    """The batch size of the script's DataLoader."""
    THREADS = "threads"
    """torch's intra-op threads on the CPU."""
    NUM_DEVICES = "num_devices"
    """How many GPUs of a kind share the work, each with the script's batch."""
    ARGUMENT = "argument"
    """What replaces ``{NAME}`` in the script's arguments."""


class SweepAxis(msgspec.Struct, frozen=True, kw_only=True):
    """One knob, and the values it takes.

    Args:
        name: As given to ``--over``.
        role: What it changes.
        values: In the order given, each once.
    """

    name: str
    role: AxisRole
    values: tuple[AxisValue, ...]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One device's step at one point of the grid.

    Args:
        settings: The value of every axis.
        device: Name of the device.
        kind: CPU or GPU.
        source: Measured here, or predicted.
        step_ns: Time of one step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        batch_size: Samples per step, over all devices; null where the script does not tell.
        num_parameters: Elements of the parameters that are trained.
        bound: What limits it; null where that was not worked out.
        fits: Whether its memory fits the device; null where unknown.
        num_samples: Steps that a measurement rests on; 0 for a prediction.
        caveats: Reasons to trust the figure less.
        num_threads: torch's threads of a CPU's measured step: the best of those tried, where they
            are no axis; null elsewhere.
        processor: A CPU's name, where ``device`` says its threads as well; empty elsewhere.
    """

    settings: dict[str, AxisValue]
    device: str
    kind: DeviceKind
    source: Source
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    batch_size: int | None = None
    num_parameters: int = 0
    bound: Bound | None = None
    fits: bool | None = None
    num_samples: int = 0
    caveats: tuple[Caveat, ...] = ()
    num_threads: int | None = None
    processor: str = ""

    @property
    def hardware(self) -> str:
        """Return the device's name, without threads."""
        return self.processor or self.device


class SweepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the grid at which the script gave no answer.

    Args:
        settings: The value of every axis.
        message: Why, with the user's file and line where there is one.
    """

    settings: dict[str, AxisValue]
    message: str


class SweepCurve(Curve, frozen=True, kw_only=True):
    """Step time of one device along one axis, all other axes held.

    Args:
        held: The value of every other axis.
        processor: As of a `SweepPoint`.
    """

    held: dict[str, AxisValue]
    processor: str = ""


class SweepCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """From which size on one GPU wins, all other axes held.

    Args:
        device: The GPU.
        cpu: The CPU's curve it is compared with.
        held: The value of every other axis.
        outcome: The crossover along its ``axis``, or why there is none.
    """

    device: str
    cpu: str
    held: dict[str, AxisValue]
    outcome: Crossover | NoCrossover


class PublishedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that others published.

    Args:
        label: Device and software, as published.
        axis: What ``size`` is: the name of an axis, or ``num_parameters``.
        size: Position on it.
        step_ns: Time of one step; null where only the size was published, as of a crossover.
        source: Where it was published.
    """

    label: str
    axis: str
    size: float
    step_ns: Nanoseconds | None
    source: str


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven sweep` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        target: What was swept, as it was given.
        arguments: Arguments of the script, with ``{NAME}`` where an axis enters.
        host: The machine that feeds the devices.
        axes: The grid; the first axis is that of the charts.
        points: Devices × grid, by grid point; measured ones first within each.
        failures: Grid points without an answer.
        crossovers: One per GPU and held setting, for every axis of whole numbers; with an
            argument along which the number of parameters grows, also along ``num_parameters``.
        published: Figures of others to draw beside.
        caveats: Reasons to trust all figures less; those of one point are with it.
        writes: What a run of the script wrote, and what became of that; null where it did not run,
            and in older reports.
    """

    schema_version: int
    target: str
    arguments: tuple[str, ...]
    host: HostSummary
    axes: tuple[SweepAxis, ...]
    points: tuple[SweepPoint, ...]
    failures: tuple[SweepFailure, ...] = ()
    crossovers: tuple[SweepCrossover, ...] = ()
    published: tuple[PublishedPoint, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    writes: FileWrites | None = None
