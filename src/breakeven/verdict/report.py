"""What reports say of a step: where to train, from which size on, and on which host."""

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
    """The step that was traced, in numbers.

    Args:
        num_ops: Operators that the dispatcher sees.
        num_kernels: Kernels that a GPU would launch for them.
        num_syncs: Times the host waits for the device.
        h2d_bytes: Host to device, per step.
        d2h_bytes: Device to host, per step.
        batch_size: Samples per step, or null when the script does not tell.
        num_parameters: Elements of the parameters that are trained.
        host_ns: Time that the host needs to issue the step, waiting for nothing.
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
        choice: ``cpu``, ``gpu``, ``too_close`` when the interval straddles 1, or ``undecided`` when
            a time is too uncertain to tell, as on a machine that is too busy.
        device: The device chosen; where there is none, the GPU that was compared.
        over: The best device of the other kind, which it is compared with.
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
        """Return the devices that are compared."""
        return self.device, self.over

    @property
    def is_settled(self) -> bool:
        """Return whether it names a device to train on."""
        return self.choice in (Choice.CPU, Choice.GPU)


class Crossover(msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="found"):
    """From which size on the GPU wins, for all larger sizes searched.

    Args:
        axis: What is varied: ``batch_size``.
        device: The GPU that wins from there on.
        value: The smallest size from which it wins.
        low: Lower end of its interval.
        high: Upper end; null where the interval reaches past the largest size searched.
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
        none_because: One sentence for a person, with what to do next.
        axis: What was varied, or would have been.
        faster: Which kind wins at every size searched; null where nothing was searched.
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
        source: Where its costs per operator are from; then, after a semicolon, the assumption.
        torch_version: torch that ran the script.
        python_version: Python that ran the script.
        assumption: How a device's share of an operator is known, where that was not measured with
            the rest; empty elsewhere.
    """

    name: str
    num_threads: int
    source: str
    torch_version: str
    python_version: str
    assumption: str = ""

    @property
    def calibration(self) -> str:
        """Return where its costs are from, without what was assumed."""
        return self.source.removesuffix(f"; {self.assumption}")


def host_summary(
    host: HostSpec, *, num_threads: int, torch_version: str, python_version: str
) -> HostSummary:
    """Return a host as reports show it.

    Args:
        host: What issues the work.
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


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Step time of one device at one size.

    Args:
        size: Value on the axis; a batch size is that of the script's DataLoader.
        step_ns: Time of one step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        source: Measured here, or predicted.
    """

    size: int
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    source: Source

    @property
    def estimate(self) -> Estimate:
        """Return the time, without the size."""
        return Estimate(
            value_ns=self.step_ns, low_ns=self.low_ns, high_ns=self.high_ns, source=self.source
        )


def curve_point(size: int, estimate: Estimate) -> CurvePoint:
    """Return the point of a curve for a time at a size."""
    return CurvePoint(
        size=size,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        source=estimate.source,
    )


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Step time of one device along an axis.

    Args:
        device: Name of the device.
        kind: CPU or GPU.
        axis: What is varied: ``batch_size``.
        points: By size.
    """

    device: str
    kind: DeviceKind
    axis: str
    points: tuple[CurvePoint, ...]
