"""The answer to `breakeven check`, as values: what the JSON document and every renderer show.

The JSON schema is generated from these types, so a changed key is a changed contract: raise
``SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.device import HostSpec
from breakeven.errors import Caveat
from breakeven.simulate import Finding
from breakeven.timing import Estimate, Source
from breakeven.trace import FileWrites
from breakeven.verdict.compiled import CapturedStep, CompiledSteps
from breakeven.verdict.generated import GeneratedStep
from breakeven.verdict.program_summary import ProgramSummary
from breakeven.verdict.recording import RecordedStep
from breakeven.verdict.results import DeviceKind, DeviceResult, Nanoseconds

SCHEMA_VERSION = 3


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


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven check` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        target: What was checked, as it was given.
        host: The machine that feeds the devices.
        step: The recorded step.
        results: One for each device, those that are here first.
        verdict: Where to train.
        crossover: From which batch size on a GPU wins, or why that is not told.
        findings: What costs time on a GPU, lines that would raise first, then by gain.
        caveats: Reasons to trust all figures less; those of one device are in its result.
        curves: Step times along the batch size; empty where it was not varied.
        recording: The step itself, in stored runs only: `explain` reads it.
        program: The whole training, which is more than its steps; null in older reports.
        writes: What a run of the script wrote, and what became of that; null where it did not run,
            and in older reports.
        generated: This CPU's step as generated code; null where there is none, and in older
            reports. The verdict does not count it: the script is judged as it is.
        generated_crossover: From which batch size on a GPU wins against that; null where it gains
            nothing, and where no DataLoader sets the size.
        absent_cpus: The step on CPUs that were named and are not here, predicted from this one's;
            empty in older reports. The verdict does not count them: GPUs are compared with this
            CPU.
        compiled: The step as ``torch.compile`` would make it; null where nobody asked for that, and
            in older reports. The verdict does not count it.
        captured: The step of the fastest GPU as one CUDA graph, where the host decides how long it
            takes; else null, as in older reports. The verdict does not count it.
    """

    schema_version: int
    target: str
    host: HostSummary
    step: StepSummary
    results: tuple[DeviceResult, ...]
    verdict: Verdict
    crossover: Crossover | NoCrossover
    findings: tuple[Finding, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    curves: tuple[Curve, ...] = ()
    recording: RecordedStep | None = None
    program: ProgramSummary | None = None
    writes: FileWrites | None = None
    generated: GeneratedStep | None = None
    generated_crossover: Crossover | NoCrossover | None = None
    absent_cpus: tuple[DeviceResult, ...] = ()
    compiled: CompiledSteps | None = None
    captured: CapturedStep | None = None
