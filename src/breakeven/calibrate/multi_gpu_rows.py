"""Steps timed on several devices, paired with those on one of them, for the fit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from breakeven.calibrate.multi_gpu_fit import MultiGpuRow
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate import CostModel, ModelSize, PhaseTimes, lone_step_ns, setup_of
from breakeven.trace import StepCase

# A lone step with nearly as large a batch will do, scaled: large batches are chosen to fill the
# memory, of which several devices leave a little less.
_BATCH_TOLERANCE = 0.12


class TimedRow(Protocol):
    """What the fit needs of a row of a table of timings."""

    @property
    def case(self) -> StepCase:
        """Which step."""
        ...

    @property
    def source(self) -> str:
        """Who measured it."""
        ...

    @property
    def device(self) -> str:
        """Name of the GPU."""
        ...

    @property
    def num_devices(self) -> int:
        """How many shared the step."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per device."""
        ...

    @property
    def host(self) -> str:
        """Processor of the machine; may be empty."""
        ...

    @property
    def framework(self) -> str:
        """Software and its versions."""
        ...

    @property
    def note(self) -> str:
        """Names the strategy."""
        ...

    @property
    def value_ns(self) -> float:
        """Measured time."""
        ...


def lone_steps_ns(timings: Sequence[TimedRow]) -> dict[int, float]:
    """Return what the step of each timing of several devices took on one of them, by position.

    Those without such a partner in ``timings`` are left out.
    """
    alone: defaultdict[tuple[str, ...], list[TimedRow]] = defaultdict(list)
    for timing in timings:
        if timing.num_devices == 1:
            alone[_machine(timing)].append(timing)
    return {
        position: lone_ns
        for position, timing in enumerate(timings)
        if timing.num_devices > 1
        and (lone_ns := _lone_ns(timing, alone[_machine(timing)])) is not None
    }


def multi_gpu_row(
    timing: TimedRow,
    times: PhaseTimes,
    size: ModelSize,
    *,
    measured_single_ns: float,
    device: DeviceSpec,
    host: HostSpec,
    costs: CostModel,
) -> MultiGpuRow:
    """Return a timing of several devices as the fit sees it.

    Args:
        timing: The shared step.
        times: The lone step, as ``costs`` predict it.
        size: The model.
        measured_single_ns: The lone step, measured.
        device: Each of the devices.
        host: What issues the work.
        costs: What the lone step is predicted with.
    """
    setup, _ = setup_of(timing.note, timing.num_devices)
    return MultiGpuRow(
        family=_family(timing.case.workload),
        device=device,
        setup=setup,
        times=times,
        size=size,
        dispatch_ns=costs.dispatch_ns(host),
        single_ns=lone_step_ns(times, overlap_loss_fraction=costs.overlap_loss_fraction),
        measured_single_ns=measured_single_ns,
        measured_ns=timing.value_ns,
    )


def _machine(timing: TimedRow) -> tuple[str, ...]:
    case = timing.case
    return (
        timing.source,
        case.workload,
        case.phase,
        case.number_format,
        case.optimizer,
        case.h2d,
        timing.device,
        timing.framework,
    )


def _lone_ns(timing: TimedRow, alone: Sequence[TimedRow]) -> float | None:
    """Return the lone step beside ``timing``: of the same host where there is one."""
    near = [
        other for other in alone if abs(other.batch_size / timing.batch_size - 1) < _BATCH_TOLERANCE
    ]
    same = [other for other in near if other.host == timing.host] or near
    if not same:
        return None
    return median(other.value_ns * timing.batch_size / other.batch_size for other in same)


def _family(workload: str) -> str:
    """Return the family of a model: the word that its name begins with, ``wide_`` left out."""
    name = workload.partition(":")[2].removeprefix("wide_")
    found = re.match(r"[A-Z]?[a-z]+", name)
    return found.group().casefold() if found else name
