"""The findings about a step: where to train, from which size on, and on which host."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.device import HostSpec
from breakeven.timing import Estimate, Source
from breakeven.verdict.results import DeviceKind, Nanoseconds


class Choice(StrEnum):
    """Where the script should train."""

    CPU = "cpu"
    GPU = "gpu"
    TOO_CLOSE = "too_close"
    UNDECIDED = "undecided"


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the traced step.

    Args:
        num_ops: Operators that pass the dispatcher.
        num_kernels: Kernels that these operators launch on a GPU.
        num_syncs: Times the host waits for the device.
        h2d_bytes: Host to device, per step.
        d2h_bytes: Device to host, per step.
        batch_size: Samples per step; null if unknown.
        num_parameters: Number of elements of the trained parameters.
        host_ns: Host time to issue the step, without waiting.
    """

    num_ops: int
    num_kernels: int
    num_syncs: int
    h2d_bytes: int
    d2h_bytes: int
    batch_size: int | None
    num_parameters: int
    host_ns: Nanoseconds


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Where to train.

    Args:
        choice: ``cpu``, ``gpu``, ``too_close`` if the interval includes 1, or ``undecided`` if a
            time is too uncertain, as on a busy machine.
        device: The chosen device; if none is chosen, the GPU of the comparison.
        over: The best device of the other kind, with which ``device`` is compared.
        speedup: Step time of ``over`` divided by that of ``device``.
        low: Lower end of its 90 % interval.
        high: Upper end.
        because: One sentence for a person.
    """

    choice: Choice
    device: str
    over: str
    speedup: float
    low: float
    high: float
    because: str

    @property
    def pair(self) -> tuple[str, str]:
        """Return the two compared devices."""
        return self.device, self.over

    @property
    def is_settled(self) -> bool:
        """Return whether the verdict names a device to train on."""
        return self.choice in (Choice.CPU, Choice.GPU)


class Crossover(msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="found"):
    """The size from which the GPU wins at all larger sizes searched.

    Args:
        axis: The varied quantity: ``batch_size``.
        device: The GPU that wins from there on.
        value: The smallest size from which it wins.
        low: Lower end of its interval.
        high: Upper end; null if it is beyond the largest size searched.
        searched: Smallest and largest size searched.
    """

    axis: str
    device: str
    value: int
    low: int
    high: int | None
    searched: tuple[int, int]


class NoCrossover(msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="none"):
    """Why there is no crossover to report.

    Args:
        none_because: One sentence for a person, with the next action.
        axis: The quantity that was, or would have been, varied.
        faster: The kind that wins at every size searched; null if no size was searched.
        searched: Smallest and largest size searched.
    """

    none_because: str
    axis: str = "batch_size"
    faster: DeviceKind | None = None
    searched: tuple[int, int] | None = None


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that feeds the devices.

    Args:
        name: Processor.
        num_threads: Threads that torch uses for the CPU's step.
        source: Source of its costs per operator; then, after a semicolon, the assumption.
        torch_version: torch that ran the script.
        python_version: Python that ran the script.
        assumption: How a device's share of an operator's cost is estimated; empty if it was
            measured with the rest.
    """

    name: str
    num_threads: int
    source: str
    torch_version: str
    python_version: str
    assumption: str = ""

    @property
    def calibration(self) -> str:
        """Return the source of its costs, without the assumption."""
        return self.source.removesuffix(f"; {self.assumption}")


def host_summary(
    host: HostSpec, *, num_threads: int, torch_version: str, python_version: str
) -> HostSummary:
    """Return a host as reports show it.

    Args:
        host: The host that issues the work.
        num_threads: Threads that torch uses for the CPU's step.
        torch_version: torch that ran the script.
        python_version: Python that ran the script.
    """
    return HostSummary(
        name=host.name,
        num_threads=num_threads,
        source=host.source,
        torch_version=torch_version,
        python_version=python_version,
        assumption=host.assumption or "",
    )


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step time of one device at one size.

    Args:
        size: Value on the axis; for batch sizes, the one of the script's DataLoader.
        step_ns: Time of one step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        source: Measured here, or predicted.
        fits: Whether the device has the memory; absent if unknown.
    """

    size: int
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    source: Source
    fits: bool | None = None

    @property
    def estimate(self) -> Estimate:
        """Return the time, without the size."""
        return Estimate(
            value_ns=self.step_ns, low_ns=self.low_ns, high_ns=self.high_ns, source=self.source
        )


def curve_point(size: int, estimate: Estimate, fits: bool | None = None) -> CurvePoint:
    """Return the point of a curve for a time at a size."""
    return CurvePoint(
        size=size,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        source=estimate.source,
        fits=fits,
    )


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Step time of one device along an axis.

    Args:
        device: Name of the device.
        kind: CPU or GPU.
        axis: The varied quantity: ``batch_size``.
        points: Its points, by size.
    """

    device: str
    kind: DeviceKind
    axis: str
    points: tuple[CurvePoint, ...]
