"""Figures as points of a sweep."""

from __future__ import annotations

from collections.abc import Mapping

from breakeven.capture import PlainRun
from breakeven.session import measured_result
from breakeven.simulate import StepPrediction
from breakeven.timing import Estimate, Source
from breakeven.trace import StepTrace
from breakeven.verdict import AxisValue, DeviceKind, SweepPoint, cpu_on_threads


def step_batch_size(step: StepTrace, settings: Mapping[str, AxisValue]) -> int | None:
    """Return the samples of a step on one device, where the step or the name of an axis tells."""
    named = settings.get("batch_size")
    return step.batch_size or (named if isinstance(named, int) else None)


def predicted_point(
    settings: Mapping[str, AxisValue], step: StepTrace, prediction: StepPrediction, num_devices: int
) -> SweepPoint:
    """Return the point of a GPU.

    Args:
        settings: Value of every axis.
        step: The step on one device.
        prediction: Its time.
        num_devices: How many devices share it, each with the batch of the step.
    """
    batch_size = step_batch_size(step, settings)
    return SweepPoint(
        settings=dict(settings),
        device=prediction.device.name,
        kind=DeviceKind.GPU,
        source=Source.PREDICTED,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        batch_size=batch_size and batch_size * num_devices,
        num_parameters=step.num_parameters,
        bound=prediction.bound,
        fits=prediction.fits,
        caveats=prediction.caveats,
    )


def measured_point(
    settings: Mapping[str, AxisValue],
    step: StepTrace,
    run: PlainRun,
    kind: DeviceKind,
    *,
    names_threads: bool,
) -> SweepPoint:
    """Return the point of a device that is here.

    Args:
        settings: Value of every axis.
        step: The step.
        run: Its time.
        kind: CPU or GPU.
        names_threads: Let the name of a CPU say its threads.
    """
    result = measured_result(run, kind)
    return SweepPoint(
        settings=dict(settings),
        device=result.device if names_threads else run.processor,
        processor=run.processor if names_threads and kind is DeviceKind.CPU else "",
        kind=kind,
        source=Source.MEASURED,
        step_ns=result.step_ns,
        low_ns=result.low_ns,
        high_ns=result.high_ns,
        batch_size=step_batch_size(step, settings),
        num_parameters=step.num_parameters,
        fits=True,
        num_samples=result.num_samples,
        num_threads=run.num_threads if kind is DeviceKind.CPU else None,
        caveats=result.caveats,
    )


def told_point(
    settings: Mapping[str, AxisValue],
    step: StepTrace,
    run: PlainRun,
    time: Estimate,
    *,
    names_threads: bool,
) -> SweepPoint:
    """Return the point of this CPU at a size between measured ones.

    Args:
        settings: Value of every axis.
        step: The step.
        run: A measured one.
        time: What the curve tells.
        names_threads: Let the CPU's name say its threads.
    """
    return SweepPoint(
        settings=dict(settings),
        device=cpu_on_threads(run.processor, run.num_threads) if names_threads else run.processor,
        processor=run.processor if names_threads else "",
        kind=DeviceKind.CPU,
        source=Source.PREDICTED,
        step_ns=time.value_ns,
        low_ns=time.low_ns,
        high_ns=time.high_ns,
        batch_size=step_batch_size(step, settings),
        num_parameters=step.num_parameters,
    )
