"""A measured step, taken apart into the times that effects are factors on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.cost import (
    EffectKey,
    EfficiencyTable,
    Era,
    HostPart,
    Kernel,
    StepCosts,
    copy_ns,
    floor_effect_keys,
    group_key,
    host_effect_keys,
    host_op_parts,
    kernel_effect_keys,
    kernel_times,
    launch_costs,
    no_step_effects,
    overlap_effect_keys,
)
from breakeven.device import DeviceSpec, HostSpec, generation_of
from breakeven.simulate import Program, simulate
from breakeven.trace import Copy, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Where and how a step was measured.

    Args:
        device: The GPU.
        host: What issued the work, as its datasheet describes it.
        era: Software.
        machine: Name under which what is peculiar to the machine is kept.
        measured_ns: Time of one step.
    """

    device: DeviceSpec
    host: HostSpec
    era: Era
    machine: str
    measured_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """Time of a step that the same effects scale.

    Args:
        time_ns: Before any effect.
        keys: The effects.
    """

    time_ns: float
    keys: tuple[EffectKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """A measured step in parts.

    Args:
        step: Where and how it was measured.
        simulated_ns: What the simulation makes of it before any effect.
        waiting_ns: The part of it during which the host waits for copies; no effect scales it.
        device_parts: Times of kernels.
        host_parts: Times of the host, launches among them.
        overlap_keys: Effects on the share of overlapping work that is lost.
    """

    step: MeasuredStep
    simulated_ns: float
    waiting_ns: float
    device_parts: tuple[StepPart, ...]
    host_parts: tuple[StepPart, ...]
    overlap_keys: tuple[EffectKey, ...]


def take_apart(
    program: Program, steps: Sequence[MeasuredStep], efficiencies: EfficiencyTable
) -> tuple[StepSample, ...]:
    """Return the same step, measured in several places, in parts.

    Args:
        program: The step, lowered.
        steps: Where it was measured.
        efficiencies: Fitted to benchmarks of operators.
    """
    devices = tuple({step.device.id: step.device for step in steps}.values())
    simulated_ns = _simulated_ns(program, steps, efficiencies)
    kernels = _KernelClasses.of(program.kernels, devices, efficiencies)
    host_ns = {host: _host_ns(program, host) for host in {step.host for step in steps}}
    return tuple(
        StepSample(
            step=step,
            simulated_ns=simulated_ns[step.device.id, step.host],
            waiting_ns=sum(
                copy_ns(copy.num_bytes, device=step.device, is_pinned=copy.is_pinned)
                for copy in program.trace.events
                if isinstance(copy, Copy) and copy.is_blocking
            ),
            device_parts=kernels.parts(step, devices.index(step.device)),
            host_parts=_host_parts(program, step, host_ns[step.host]),
            overlap_keys=overlap_effect_keys(machine=step.machine),
        )
        for step in steps
    )


def _simulated_ns(
    program: Program, steps: Sequence[MeasuredStep], efficiencies: EfficiencyTable
) -> dict[tuple[str, HostSpec], float]:
    """Return the time by device and host; the devices of a host are simulated together."""
    program = program.with_costs(StepCosts(efficiencies=efficiencies, effects=no_step_effects()))
    simulated_ns: dict[tuple[str, HostSpec], float] = {}
    for host in {step.host for step in steps}:
        devices = {step.device.id: step.device for step in steps if step.host == host}
        times = simulate([program], list(devices.values()), host).step_ns[0, :, 0]
        simulated_ns |= {
            (device, host): time_ns for device, time_ns in zip(devices, times.tolist(), strict=True)
        }
    return simulated_ns


@dataclass(frozen=True, slots=True)
class _KernelClasses:
    """Kernels of a step that the same effects scale, whatever the device, with their times.

    Args:
        members: One kernel of each class.
        time_ns: All kernels of the class, shaped (classes, devices).
        launches: Their launches.
    """

    members: tuple[Kernel, ...]
    time_ns: NDArray[np.float64]
    launches: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        kernels: Sequence[Kernel],
        devices: Sequence[DeviceSpec],
        efficiencies: EfficiencyTable,
    ) -> _KernelClasses:
        """Return the classes of ``kernels``."""
        rows: dict[Hashable, int] = {}
        row_of = np.array(
            [rows.setdefault(group_key(kernel), len(rows)) for kernel in kernels], dtype=np.intp
        )
        members = dict(zip(row_of.tolist(), kernels, strict=True))
        time_ns = np.zeros((len(rows), len(devices)))
        launches = np.zeros(len(rows))
        if kernels:
            times = kernel_times(kernels, devices, efficiencies=efficiencies).time_ns
            np.add.at(time_ns, row_of, times)
            np.add.at(launches, row_of, [float(kernel.launches) for kernel in kernels])
        return cls(tuple(members[row] for row in range(len(rows))), time_ns, launches)

    def parts(self, step: MeasuredStep, column: int) -> tuple[StepPart, ...]:
        """Return the device's times on the device of ``column``, the floors of launches apart."""
        floor_ns = generation_of(step.device).floor_ns
        sums: defaultdict[tuple[EffectKey, ...], float] = defaultdict(float)
        for row, kernel in enumerate(self.members):
            own_floor_ns = float(self.launches[row]) * floor_ns
            keys = kernel_effect_keys(kernel, step.device, era=step.era, machine=step.machine)
            sums[keys] += float(self.time_ns[row, column]) - own_floor_ns
            sums[floor_effect_keys(kernel, step.device)] += own_floor_ns
        return _as_parts(sums)


def _host_ns(program: Program, host: HostSpec) -> dict[HostPart, float]:
    """Return what each kind of host work takes in a step."""
    sums: defaultdict[HostPart, float] = defaultdict(float)
    for op, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if lowering is not None and isinstance(op, Op):
            for part, time_ns in host_op_parts(op, lowering, host):
                sums[part] += time_ns
    return sums


def _host_parts(
    program: Program, step: MeasuredStep, host_ns: dict[HostPart, float]
) -> tuple[StepPart, ...]:
    sums: defaultdict[tuple[EffectKey, ...], float] = defaultdict(float)
    for part, time_ns in host_ns.items():
        keys = host_effect_keys(part, era=step.era, machine=step.machine, is_measured=False)
        sums[keys] += time_ns
    # What the driver takes is known; nothing here scales it.
    sums[()] += launch_costs(step.device).launch_ns * program.num_kernels
    return _as_parts(sums)


def _as_parts(sums: dict[tuple[EffectKey, ...], float]) -> tuple[StepPart, ...]:
    return tuple(StepPart(time_ns=ns, keys=keys) for keys, ns in sums.items() if ns > 0)
