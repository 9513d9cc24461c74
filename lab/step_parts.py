"""Split measured steps into the times that effects scale."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.calibrate.step_fit import StepPart, StepSample
from breakeven.cost import (
    EffectKey,
    EfficiencyTable,
    Era,
    HostPart,
    Kernel,
    StepCosts,
    copy_ns,
    era_of,
    floor_effect_keys,
    group_key,
    host_effect_keys,
    host_for,
    host_op_parts,
    kernel_effect_keys,
    launch_costs,
    load_efficiencies,
    no_step_effects,
    overlap_effect_keys,
    step_by_step,
)
from breakeven.device import DeviceSpec, HostSpec, Precision, find_device, generation_of
from breakeven.simulate import CostTable, KernelTable, Program, RepeatedStep, cost_table, price
from breakeven.trace import Copy, Op, StepTrace
from breakeven.validate import MeasuredRow
from breakeven.validate.traced_rows import TracedRows, machine_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# URLs by the word in the column ``source``; other sources have only their word.
_REPOSITORIES = {
    "ryujaehun": "https://github.com/ryujaehun/pytorch-gpu-benchmark",
    "timm": "https://github.com/huggingface/pytorch-image-models",
    "lambda": "https://github.com/lambdal/deeplearning-benchmark",
    "neusight": "https://github.com/sitar-lab/NeuSight",
    "jcjohnson": "https://github.com/jcjohnson/cnn-benchmarks",
}


def provenance_of(rows: Sequence[MeasuredRow], command: str) -> str:
    """Describe how a file was made, and its data.

    Args:
        rows: The used rows.
        command: The command that makes it again from their table.
    """
    counts = Counter(row.source or "not given" for row in rows)
    sources = "; ".join(
        f"{source}, {_REPOSITORIES[source]} ({count})"
        if source in _REPOSITORIES
        else f"{source} ({count})"
        for source, count in sorted(counts.items())
    )
    return f"Fitted by `{command}` to {len(rows)} measured steps of published tables: {sources}."


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The place and time of a measured step.

    Args:
        device: The GPU.
        host: The host that issued the work, by its datasheet.
        era: Era of the software.
        machine: Name under which the machine's own effects are stored.
        measured_ns: Time of one step.
    """

    device: DeviceSpec
    host: HostSpec
    era: Era
    machine: str
    measured_ns: float


class PlacedStep:
    """A step measured in several places, to be split for several fits.

    Everything independent of efficiencies is computed once: the events' costs, the classes of the
    kernels, and the host's time.

    Args:
        program: The step, lowered.
        places: Places of the measurements.
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
        """Split the step into parts.

        Args:
            efficiencies: Fitted to benchmarks of operators.
            which: Positions of the places; all by default.
        """
        places = [self._places[i] for i in (range(len(self._places)) if which is None else which)]
        # Of the era, only its effect on a kernel's time before any effect matters here.
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
        # Long fp64 kernels do not show the loss from overlap with the host: it would absorb their
        # own error, and pass that on to the machine's other steps.
        is_fp64 = any(kernel.precision is Precision.FP64 for kernel in self._classes.members)
        return tuple(
            StepSample(
                measured_ns=place.measured_ns,
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
    """Return the properties of an era that decide a kernel's time before any effect."""
    return era.is_before_cudnn_8, era.has_small_recurrence


def _plain_costs(efficiencies: EfficiencyTable, era: Era = Era.TORCH_2) -> StepCosts:
    return StepCosts(efficiencies=efficiencies, effects=no_step_effects(), era=era)


@dataclass(frozen=True, slots=True)
class _KernelClasses:
    """Classes of a step's kernels; the same effects scale a class on every device.

    Args:
        members: One kernel of each class.
        launches: All launches of the class.
        launches_by_step: The same with one launch for each time step.
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
        """Return the total time of each class on each device: (classes, devices)."""
        sums = np.zeros((len(self.members), len(kernels.devices)))
        np.add.at(sums, self.row_of, kernels.times(self.kernel_of).time_ns)
        return sums

    def parts(self, place: StepTiming, time_ns: Floats) -> tuple[StepPart, ...]:
        """Return a device's times from those of the classes, with launch floors separate."""
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
    """Return the time of each kind of host work in a step."""
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
    # The driver's time is known; no effect scales it.
    sums[()] += launch_costs(step.device).launch_ns * program.num_kernels
    return _as_parts(sums)


def _as_parts(sums: dict[tuple[EffectKey, ...], float]) -> tuple[StepPart, ...]:
    return tuple(StepPart(time_ns=ns, keys=keys) for keys, ns in sums.items() if ns > 0)


class RowParts:
    """Steps of a table on one GPU, to be split for several fits.

    Args:
        steps: Rows with their steps.
    """

    def __init__(self, steps: TracedRows) -> None:
        members: defaultdict[int, list[int]] = defaultdict(list)
        for position, (row, step) in enumerate(zip(steps.rows, steps.steps, strict=True)):
            if isinstance(step, StepTrace) and row.num_devices == 1:
                members[id(step)].append(position)
        self._num_rows = len(steps.rows)
        self._placed: list[tuple[list[int], PlacedStep]] = []
        for positions in members.values():
            step = steps.steps[positions[0]]
            assert isinstance(step, StepTrace)
            places = [_measured(steps.rows[position]) for position in positions]
            self._placed.append((positions, PlacedStep(steps.model(step).program, places)))

    def samples(
        self, efficiencies: EfficiencyTable, positions: Iterable[int] | None = None
    ) -> dict[int, StepSample]:
        """Split the rows that a calibration can learn from, by position.

        Args:
            efficiencies: Fitted to benchmarks of operators.
            positions: Rows to split; all by default.
        """
        wanted = set(range(self._num_rows) if positions is None else positions)
        samples: dict[int, StepSample] = {}
        for members, placed in self._placed:
            which = [index for index, position in enumerate(members) if position in wanted]
            parts = placed.samples(efficiencies, which) if which else ()
            samples |= {members[i]: part for i, part in zip(which, parts, strict=True)}
        return samples


def _measured(row: MeasuredRow) -> StepTiming:
    era = era_of(row.framework)
    host, _ = host_for(row.host, era)
    return StepTiming(
        device=find_device(row.device),
        host=host,
        era=era,
        machine=machine_of(row),
        measured_ns=row.value_ns,
    )
