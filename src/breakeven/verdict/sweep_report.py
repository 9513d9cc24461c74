"""The answer to `breakeven sweep`, as values: step times over a grid, and their crossovers.

The JSON schema is generated from these types, so a changed key breaks the contract: raise
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
    """The quantity that an axis changes."""

    BATCH_SIZE = "batch_size"
    """The batch size of the script's DataLoader."""
    THREADS = "threads"
    """torch's intra-op threads on the CPU."""
    NUM_DEVICES = "num_devices"
    """How many GPUs of a kind share the work, each with the script's batch."""
    ARGUMENT = "argument"
    """What replaces ``{NAME}`` in the script's arguments."""


class SweepAxis(msgspec.Struct, frozen=True, kw_only=True):
    """One setting and its values.

    Args:
        name: Name, as given to ``--over``.
        role: The quantity that it changes.
        values: Values in the given order, without duplicates.
    """

    name: str
    role: AxisRole
    values: tuple[AxisValue, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether all values are positive whole numbers."""
        return all(isinstance(value, int) and value >= 1 for value in self.values)


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
        batch_size: Samples per step, over all devices; null if unknown.
        num_parameters: Number of elements of the trained parameters.
        bound: The bottleneck of the step; null if it was not determined.
        fits: Whether its memory fits the device; null if unknown.
        num_samples: Number of measured steps; 0 for a prediction.
        caveats: Reasons to trust the figure less.
        num_threads: torch's threads in a measured CPU step, the best of those tried if threads are
            no axis; null for other points.
        processor: A CPU's name without its threads, if ``device`` includes them; else empty.
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
    """A point of the grid at which the script failed.

    Args:
        settings: The value of every axis.
        message: The reason, with the user's file and line if known.
    """

    settings: dict[str, AxisValue]
    message: str


class SweepCurve(Curve, frozen=True, kw_only=True):
    """Step time of one device along one axis, all other axes held.

    Args:
        held: The value of every other axis.
        processor: See `SweepPoint`.
    """

    held: dict[str, AxisValue]
    processor: str = ""


class SweepCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """The size from which one GPU wins, all other axes held.

    Args:
        device: The GPU.
        cpu: Name of the CPU curve of the comparison.
        held: The value of every other axis.
        outcome: The crossover along its ``axis``, or why there is none.
    """

    device: str
    cpu: str
    held: dict[str, AxisValue]
    outcome: Crossover | NoCrossover


class PublishedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure of another source.

    Args:
        label: Device and software, as published.
        axis: Axis of ``size``: the name of an axis, or ``num_parameters``.
        size: Position on that axis.
        step_ns: Time of one step; null if only the size was published, as for a crossover.
        source: The publication.
    """

    label: str
    axis: str
    size: float
    step_ns: Nanoseconds | None
    source: str


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven sweep`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        target: The script or module, as given.
        arguments: Arguments of the script, with ``{NAME}`` in place of an axis value.
        host: The machine that feeds the devices.
        axes: The axes of the grid; charts use the first.
        points: Devices × grid, by grid point; measured ones first within each.
        failures: Grid points without an answer.
        crossovers: One per GPU and held setting, for every axis of whole numbers; also along
            ``num_parameters`` if an argument changes the number of parameters.
        published: Published figures to draw in the same chart.
        caveats: Reasons to trust all figures less; each point has its own.
        writes: Files that a run of the script wrote, and what happened to them; null if it did not
            run, and in older reports.
        command: The command that made the report, without options of output; empty if no command
            did, and in older reports.
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
    command: str = ""
