"""A device's step time as shown in every report, and names of devices."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from breakeven.errors import Caveat
from breakeven.simulate import Bound, StepPrediction
from breakeven.timing import Estimate, MachinePower, Source

Nanoseconds = Annotated[float, Meta(ge=0.0)]


class DeviceKind(StrEnum):
    """Hardware of a result."""

    CPU = "cpu"
    GPU = "gpu"


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One device's step.

    Args:
        device: Name of the device.
        kind: CPU or GPU.
        source: Measured here, or predicted.
        precision: Number format of most of its FLOP.
        step_ns: Time of one step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        bound: The bottleneck of the step; null if it was not determined.
        peak_memory_bytes: Peak memory in use; null if unknown.
        fits: Whether the device has that much memory; null if unknown.
        caveats: Reasons to trust the figure less.
        num_samples: Number of measured steps; 0 for a prediction.
        is_disturbed: Whether other load disturbed the measurement so much that it is only a bound.
        setting: The setting that distinguishes it from other results of its device: ``1 thread``;
            empty if there is only one.
        num_threads: torch's threads in a measured CPU step; null for other results and in older
            reports.
        calibrated_on: Day on which `breakeven calibrate` measured the predicted GPU itself; empty
            if it did not.
        fed_by: Assumed kind of machine around a predicted GPU; empty if none was assumed, and in
            older reports.
        power: Power of this machine during the measured steps; null for a prediction, without
            energy counters and in older reports.
    """

    device: str
    kind: DeviceKind
    source: Source
    precision: str
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    bound: Bound | None
    peak_memory_bytes: int | None
    fits: bool | None
    caveats: tuple[Caveat, ...] = ()
    num_samples: int = 0
    is_disturbed: bool = False
    setting: str = ""
    num_threads: int | None = None
    calibrated_on: str = ""
    fed_by: str = ""
    power: MachinePower | None = None


def threads_text(number: int) -> str:
    """Return a number of threads as text."""
    return "1 thread" if number == 1 else f"{number} threads"


def cpu_on_threads(processor: str, num_threads: int) -> str:
    """Return the name of a CPU whose step was measured on ``num_threads`` threads."""
    return f"{processor} ({threads_text(num_threads)})"


def cpu_on_cores(processor: str, num_cores: int) -> str:
    """Return the name of a CPU whose step was predicted for ``num_cores`` cores."""
    return f"{processor} (1 core)" if num_cores == 1 else f"{processor} ({num_cores} cores)"


def device_result(prediction: StepPrediction) -> DeviceResult:
    """Return the result that a report shows for a predicted GPU."""
    return DeviceResult(
        device=prediction.device.name,
        kind=DeviceKind.GPU,
        source=Source.PREDICTED,
        precision=prediction.precision.value,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        bound=prediction.bound,
        peak_memory_bytes=prediction.peak_memory_bytes,
        fits=prediction.fits,
        caveats=prediction.caveats,
        calibrated_on=prediction.calibrated_on,
        fed_by=prediction.fed_by,
    )


def estimate_of(result: DeviceResult) -> Estimate:
    """Return the time of a result."""
    return Estimate(
        value_ns=result.step_ns,
        low_ns=result.low_ns,
        high_ns=result.high_ns,
        source=result.source,
    )


def cpu_result(
    device: str,
    step: Estimate,
    *,
    precision: str,
    fits: bool | None,
    caveats: tuple[Caveat, ...] = (),
    setting: str = "",
) -> DeviceResult:
    """Return the result for a CPU step with a known time, but no bound or memory.

    Args:
        device: Name of the CPU.
        step: Its time.
        precision: See `DeviceResult`.
        fits: See `DeviceResult`.
        caveats: See `DeviceResult`.
        setting: See `DeviceResult`.
    """
    return DeviceResult(
        device=device,
        kind=DeviceKind.CPU,
        source=step.source,
        precision=precision,
        step_ns=step.value_ns,
        low_ns=step.low_ns,
        high_ns=step.high_ns,
        bound=None,
        peak_memory_bytes=None,
        fits=fits,
        caveats=caveats,
        setting=setting,
    )
