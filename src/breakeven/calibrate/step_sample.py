"""Measured steps, taken apart into the times that effects are factors on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
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
    launch_costs,
    load_efficiencies,
    no_step_effects,
    overlap_effect_keys,
    step_by_step,
)
from breakeven.device import DeviceSpec, HostSpec, Precision, generation_of
from breakeven.simulate import CostTable, KernelTable, Program, RepeatedStep, cost_table, price
from breakeven.trace import Copy, Op

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
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

    step: StepTiming
    simulated_ns: float
    waiting_ns: float
    device_parts: tuple[StepPart, ...]
    host_parts: tuple[StepPart, ...]
    overlap_keys: tuple[EffectKey, ...]


class PlacedStep:
    """A step that was measured in several places, to be taken apart for one fit after another.

    What no efficiency changes is found once: the events' costs, the classes of the kernels, and
    the host's time.

    Args:
        program: The step, lowered.
        places: Where it was measured.
    """

    def __init__(self, program: Program, places: Sequence[StepTiming]) -> None:
        self._program = program.with_costs(_plain_costs(load_efficiencies()))
        self._places = tuple(places)
        self._devices = tuple({place.device.id: place.device for place in places}.values())
        self._tables = {
            host: cost_table([self._program], self._devices, host)
            for host in {place.host for place in places}
        }
        self._host_ns = {host: _host_ns(program, host) for host in self._tables}
        self._classes = _KernelClasses.of(next(iter(self._tables.values())))

    def samples(
        self, efficiencies: EfficiencyTable, which: Iterable[int] | None = None
    ) -> tuple[StepSample, ...]:
        """Return the step in parts.

        Args:
            efficiencies: Fitted to benchmarks of operators.
            which: Positions of the places; all by default.
        """
        places = [self._places[i] for i in (range(len(self._places)) if which is None else which)]
        # Of the software, only what it makes of a kernel before any effect matters here.
        eras = {_software(place.era): place.era for place in places}
        of_any = next(iter(self._tables.values())).kernels
        kernels = {
            software: of_any.under(_plain_costs(efficiencies, era), self._devices)
            for software, era in eras.items()
        }
        class_ns = {software: self._classes.time_ns(table) for software, table in kernels.items()}
        simulated_ns: dict[tuple[str, HostSpec, tuple[bool, bool]], float] = {}
        for host, software in {(place.host, _software(place.era)) for place in places}:
            here = {
                place.device.id
                for place in places
                if (place.host, _software(place.era)) == (host, software)
            }
            columns = [i for i, device in enumerate(self._devices) if device.id in here]
            table = self._tables[host].on(columns, kernels[software].on(columns))
            times = RepeatedStep(price(table)).step_ns
            simulated_ns |= {
                (self._devices[column].id, host, software): time_ns
                for column, time_ns in zip(columns, times[0, :, 0].tolist(), strict=True)
            }
        # Where kernels take so long, what is lost to the host is told from none of their own time:
        # it would take in whatever is wrong with them, and teach it to the machine's other steps.
        is_fp64 = any(kernel.precision is Precision.FP64 for kernel in self._classes.members)
        return tuple(
            StepSample(
                step=place,
                simulated_ns=simulated_ns[place.device.id, place.host, _software(place.era)],
                waiting_ns=sum(
                    copy_ns(copy.num_bytes, device=place.device, is_pinned=copy.is_pinned)
                    for copy in self._program.trace.events
                    if isinstance(copy, Copy) and copy.is_blocking
                ),
                device_parts=self._classes.parts(
                    place,
                    class_ns[_software(place.era)][:, self._devices.index(place.device)],
                ),
                host_parts=_host_parts(self._program, place, self._host_ns[place.host]),
                overlap_keys=overlap_effect_keys(machine="" if is_fp64 else place.machine),
            )
            for place in places
        )


def _software(era: Era) -> tuple[bool, bool]:
    """Return all that decides a kernel's time before any effect."""
    return era.is_before_cudnn_8, era.has_small_recurrence


def _plain_costs(efficiencies: EfficiencyTable, era: Era = Era.TORCH_2) -> StepCosts:
    return StepCosts(efficiencies=efficiencies, effects=no_step_effects(), era=era)


@dataclass(frozen=True, slots=True)
class _KernelClasses:
    """Kernels of a step that the same effects scale, whatever the device.

    Args:
        members: One kernel of each class.
        launches: All launches of the class.
        launches_by_step: The same with one for each time step.
        row_of: The class of each kernel, in launch order.
        kernel_of: Its row in the `KernelTable` of the step.
    """

    members: tuple[Kernel, ...]
    launches: Floats
    launches_by_step: Floats
    row_of: Indices
    kernel_of: Indices

    @classmethod
    def of(cls, table: CostTable) -> _KernelClasses:
        kernel_of = table.rows.kernel[table.rows.kernel >= 0]
        kernels = [table.kernels.kernels[row] for row in kernel_of.tolist()]
        rows: dict[Hashable, int] = {}
        row_of = np.array(
            [rows.setdefault(group_key(kernel), len(rows)) for kernel in kernels], dtype=np.intp
        )
        members = dict(zip(row_of.tolist(), kernels, strict=True))
        launches, by_step = np.zeros((2, len(rows)))
        np.add.at(launches, row_of, [float(k.launches) for k in kernels])
        np.add.at(by_step, row_of, [float(k.launches * k.num_steps) for k in kernels])
        return cls(
            members=tuple(members[row] for row in range(len(rows))),
            launches=launches,
            launches_by_step=by_step,
            row_of=row_of,
            kernel_of=kernel_of,
        )

    def time_ns(self, kernels: KernelTable) -> Floats:
        """Return all time of each class on each device: (classes, devices)."""
        sums = np.zeros((len(self.members), len(kernels.devices)))
        np.add.at(sums, self.row_of, kernels.times(self.kernel_of).time_ns)
        return sums

    def parts(self, place: StepTiming, time_ns: Floats) -> tuple[StepPart, ...]:
        """Return a device's times, given those of the classes, the floors of launches apart."""
        floor_ns = generation_of(place.device).floor_ns
        sums: defaultdict[tuple[EffectKey, ...], float] = defaultdict(float)
        is_today = place.era.has_small_recurrence
        launches = self.launches if is_today else self.launches_by_step
        members = self.members if is_today else map(step_by_step, self.members)
        for row, kernel in enumerate(members):
            own_floor_ns = float(launches[row]) * floor_ns
            keys = kernel_effect_keys(kernel, place.device, era=place.era, machine=place.machine)
            sums[keys] += float(time_ns[row]) - own_floor_ns
            sums[floor_effect_keys(kernel, place.device)] += own_floor_ns
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
    program: Program, step: StepTiming, host_ns: dict[HostPart, float]
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
