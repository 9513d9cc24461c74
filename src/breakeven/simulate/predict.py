"""Predictions of steps on absent devices, with intervals and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from breakeven.cost import untimed_kind
from breakeven.device import DeviceSpec, HostSpec, Precision
from breakeven.errors import Caveat
from breakeven.simulate.cost_table import per_batch_ns
from breakeven.simulate.program import (
    FAST,
    SLOW,
    TYPICAL,
    WITHOUT_EACH,
    Bound,
    CostModel,
    Program,
    build_program,
)
from breakeven.simulate.timelines import simulate
from breakeven.timing import Estimate
from breakeven.trace import HostWork, StepTrace

# Memory of a process before its first tensor: the CUDA context, and the kernels of torch, cuBLAS
# and cuDNN that are loaded with it. nvidia-smi shows 0.3 to 0.6 GB for it on GPUs of the last ten
# years.
CONTEXT_BYTES = 500_000_000

# Fraction of a step in kernels without measurements, above which a caveat is added.
_MOST_UNTIMED = 0.1

_SCENARIOS = (TYPICAL, FAST, SLOW, *WITHOUT_EACH)
_BOUNDS = tuple(Bound)


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step on a device.

    Args:
        device: The device.
        batch_size: Samples per step, if known.
        estimate: Time of a step in steady state, with its 90 % interval.
        bound: Resource that limits it.
        precision: Arithmetic of most of its FLOP on this device.
        host_ns: The host's own work per step, without waits.
        launch_ns: The part of it that issues the device's operators.
        device_busy_ns: Kernels and copies per step.
        loader_ns: Time of worker processes for the batches of a step; 0 without workers.
        num_kernels: Kernels launched per step.
        peak_memory_bytes: Largest memory in use, the CUDA context included.
        fits: Whether this memory fits the device.
        caveats: Reasons to trust the figures less.
        calibrated_on: Date of this GPU's calibration, ISO 8601; empty without one.
        fed_by: Kind of its machine; empty if none was assumed.
    """

    device: DeviceSpec
    batch_size: int | None
    estimate: Estimate
    bound: Bound
    precision: Precision
    host_ns: float
    launch_ns: float
    device_busy_ns: float
    loader_ns: float
    num_kernels: int
    peak_memory_bytes: int
    fits: bool
    caveats: tuple[Caveat, ...] = ()
    calibrated_on: str = ""
    fed_by: str = ""


def predict_steps(
    traces: StepTrace | Program | Sequence[StepTrace],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    *,
    costs: CostModel | None = None,
    is_captured: bool = False,
) -> tuple[StepPrediction, ...]:
    """Return the step of each trace on each device.

    Args:
        traces: One step, lowered or not, or the same step at several batch sizes.
        devices: Devices.
        host: Host that issues the work.
        costs: The cost model; the shipped one by default.
        is_captured: One CUDA graph replays all launches.

    Returns:
        Predictions, the devices of the first trace first.
    """
    if isinstance(traces, Program):
        programs = [traces]
    else:
        steps = (traces,) if isinstance(traces, StepTrace) else traces
        programs = [build_program(trace, costs=costs) for trace in steps]
    if not programs or not devices:
        return ()
    hosts = [host.for_device(device) for device in devices]
    found: dict[tuple[int, int], StepPrediction] = {}
    for feeding in dict.fromkeys(hosts):
        columns = [d for d, other in enumerate(hosts) if other == feeding]
        some = [devices[d] for d in columns]
        kinds = [kind.name if (kind := host.kind_for(device)) else "" for device in some]
        told = _predict_fed(programs, some, feeding, kinds, is_captured=is_captured)
        places = [(p, d) for p in range(len(programs)) for d in columns]
        found |= zip(places, told, strict=True)
    return tuple(found[p, d] for p in range(len(programs)) for d in range(len(devices)))


def _predict_fed(
    programs: Sequence[Program],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    kinds: Sequence[str],
    *,
    is_captured: bool,
) -> Iterator[StepPrediction]:
    """Yield the steps on devices that one host feeds, the devices of the first step first.

    Args:
        programs: The steps.
        devices: The devices.
        host: Host that issues the work.
        kinds: Names of the devices' kinds of machines.
        is_captured: As for `predict_steps`.
    """
    scenarios = [replace(scenario, is_captured=is_captured) for scenario in _SCENARIOS]
    timelines = simulate(programs, devices, host, scenarios=scenarios)
    without = {bound: len(_SCENARIOS) - len(_BOUNDS) + i for i, bound in enumerate(_BOUNDS)}
    for p, program in enumerate(programs):
        peak_memory_bytes = program.trace.peak_memory_bytes + CONTEXT_BYTES
        num_kernels, kernels = program.num_kernels, program.kernels
        loader_ns = sum(
            per_batch_ns(event)
            for event in program.trace.events
            if isinstance(event, HostWork) and event.num_workers
        )
        flop: dict[Precision, float] = {}
        for kernel in kernels:
            flop[kernel.precision] = flop.get(kernel.precision, 0.0) + kernel.flop
        main_precision = max(flop, key=flop.__getitem__, default=Precision.FP32)
        untimed = Counter(kernel for kernel in kernels if untimed_kind(kernel))
        untimed_ns = np.zeros(len(devices))
        if untimed:
            times_ns = program.costs.kernel_times(tuple(untimed), devices).time_ns
            untimed_ns = np.array(tuple(untimed.values())) @ times_ns
        for d, device in enumerate(devices):
            precision, caveats = main_precision, list(program.caveats)
            if precision is Precision.TF32 and not device.has_precision(precision):
                # Devices without TF32 ignore the switch and compute in full fp32.
                precision = Precision.FP32
            elif not device.has_precision(precision):
                message = f"{device.name} has no {precision} units and emulates {precision}."
                caveats.append(Caveat(code="emulated-precision", message=message))
            step_ns, host_ns, device_ns = (
                times[p, d]
                for times in (timelines.step_ns, timelines.host_busy_ns, timelines.device_busy_ns)
            )
            if untimed_ns[d] > _MOST_UNTIMED * step_ns[0]:
                named = ", ".join(dict.fromkeys(map(untimed_kind, untimed)))
                message = "more than a tenth of the step is kernels without GPU measurements "
                message += f"({named}): their time may be off by a factor of three"
                caveats.append(Caveat(code="untimed-kernels", message=message))
            # The bound is the resource without which the step is shortest. If two limit the step
            # alike, removing either alone changes nothing: choose the one with more work then.
            rest_ns = zip(step_ns[3:].tolist(), (device_ns + host_ns)[3:].tolist(), strict=True)
            remaining = dict(zip(_BOUNDS, rest_ns, strict=True))
            yield StepPrediction(
                device=device,
                batch_size=program.trace.batch_size,
                estimate=Estimate.predicted(*step_ns[:3].tolist()),
                bound=min(remaining, key=remaining.__getitem__),
                precision=precision,
                host_ns=float(host_ns[0]),
                launch_ns=float(host_ns[0] - host_ns[without[Bound.LAUNCH]]),
                device_busy_ns=float(device_ns[0]),
                loader_ns=loader_ns,
                num_kernels=num_kernels,
                peak_memory_bytes=peak_memory_bytes,
                fits=peak_memory_bytes <= device.memory_bytes,
                caveats=tuple(caveats),
                calibrated_on=program.costs.calibration_date(device),
                fed_by=kinds[d],
            )
