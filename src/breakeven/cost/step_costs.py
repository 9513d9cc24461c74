"""The cost model that ships: benchmarks of operators, corrected by what whole steps showed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache

import msgspec
import numpy as np

from breakeven.cost.efficiency import (
    UNTIMED_LOG_SIGMA,
    EfficiencyTable,
    load_efficiencies,
    untimed_kind,
)
from breakeven.cost.family_times import (
    KernelTimes,
    arithmetic_of,
    datasheet_ns,
    group_key,
    kernel_times,
    old_fp64_ns,
)
from breakeven.cost.gpu_calibration import (
    GpuCalibration,
    calibrated_effect_keys,
    calibrated_table,
    load_calibrations,
    own_effect_keys,
)
from breakeven.cost.host_cost import HostPart, host_op_parts
from breakeven.cost.implementations import packed_groups, step_by_step
from breakeven.cost.kernel import Kernel, Lowering
from breakeven.cost.launch_costs import LaunchCosts, copy_ns, launch_costs
from breakeven.cost.lower_compiled import is_compiled
from breakeven.cost.lowering import lower
from breakeven.cost.step_effects import (
    TYPICAL_OVERLAP_LOSS,
    Era,
    StepEffects,
    floor_effect_keys,
    host_effect_keys,
    kernel_effect_keys,
    load_step_effects,
    no_step_effects,
    overlap_effect_keys,
)
from breakeven.device import (
    DeviceSpec,
    HostSpec,
    Precision,
    devices_by_key,
    generation_of,
    load_catalogue,
    own_calibration_files,
)
from breakeven.trace import Op, Settings

# Unknown software may use libraries of any year. The same step on the same GPU took 1.18 to 1.25
# times as long under torch 1.7 as under 1.13 (see `efficiency`). An operator takes the host half
# the time under torch 2 (see `reference_host`) that it took before: sigma is half of the logarithm
# of that ratio.
_UNKNOWN_SOFTWARE_LOG_SIGMA = 0.2
_UNKNOWN_SOFTWARE_HOST_LOG_SIGMA = 0.35
# Number of cached kinds of operators; steps have tens to some thousands.
_MOST_KINDS = 10_000


class StepCosts:
    """Costs of operators, kernels, launches and copies within a step.

    Args:
        efficiencies: Results of operator benchmarks.
        effects: Results of whole steps.
        era: Software.
        machine: Name of the machine whose steps may be in the fit, or empty.
        calibrations: Calibrated GPUs, by id.
    """

    def __init__(
        self,
        *,
        efficiencies: EfficiencyTable,
        effects: StepEffects,
        era: Era = Era.TORCH_2,
        machine: str = "",
        calibrations: Mapping[str, GpuCalibration] | None = None,
    ) -> None:
        self._efficiencies = efficiencies
        self._effects = effects
        self._calibrations = calibrations or {}
        self._own_effects = {
            device: msgspec.structs.replace(no_step_effects(), effects=calibration.effects)
            for device, calibration in self._calibrations.items()
        }
        self._own_tables: dict[tuple[str, Precision], EfficiencyTable] = {}
        self._era = era
        self._machine = machine
        self._is_machine_seen = bool(machine) and effects.has(("host machine", machine))
        self._host_factors: dict[tuple[HostPart, bool], float] = {}
        # A step has few kinds of operators.
        self._lowered: dict[Hashable, Lowering] = {}

    def lower(self, op: Op, settings: Settings) -> Lowering:
        """Return the kernels of an operator; equal operators get the same object."""
        if is_compiled(op.name):  # tensors that share a storage matter too
            return lower(op, settings)
        kind = (
            op.name,
            settings,
            msgspec.json.encode(op.attributes),
            tuple([(spec.shape, spec.dtype, spec.layout) for spec in op.inputs]),
            tuple([(spec.shape, spec.dtype, spec.layout) for spec in op.outputs]),
        )
        lowering = self._lowered.get(kind)
        if lowering is None:
            if len(self._lowered) >= _MOST_KINDS:
                self._lowered.clear()
            lowering = self._lowered[kind] = lower(op, settings)
        return lowering

    def kernel_times(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> KernelTimes:
        """Return the times of all kernels on all devices, as (kernel, device) arrays."""
        if not self._era.has_small_recurrence:
            # Count their launches as today's: the device is the bottleneck in any case.
            kernels = [step_by_step(kernel) for kernel in kernels]
        times = self._benchmarked(kernels, devices, self._efficiencies)
        for column, device in enumerate(devices):
            if device.id in self._calibrations:
                self._set_calibrated(times, column, kernels, device)

        busy_ns = times.time_ns - times.floor_ns
        if self._era.is_before_cudnn_8:
            busy_ns = busy_ns + old_fp64_ns(kernels, devices)
        # Apply the effects of whole steps to work and floor, by class of kernel, not by its sizes.
        keys = [group_key(kernel) for kernel in kernels]
        members = dict(zip(keys, kernels, strict=True))
        numbers = {key: number for number, key in enumerate(members)}
        log_factors = np.zeros((2, len(members), len(devices)))
        for row, kernel in enumerate(members.values()):
            for column, device in enumerate(devices):
                log_factors[:, row, column] = self._log_factors(kernel, device)
        rows = np.array([numbers[key] for key in keys], dtype=np.intp)
        busy_factor, floor_factor = np.exp(log_factors[:, rows])
        time_factor = np.array([kernel.time_factor for kernel in kernels]).reshape(-1, 1)
        # An effect of a class must not make a kernel faster than its device's datasheet.
        corrected_ns = np.maximum(
            busy_ns * time_factor * busy_factor,
            np.minimum(busy_ns, datasheet_ns(kernels, devices)),
        )
        floor_ns = times.floor_ns * floor_factor

        spreads = [
            self._effects.spread.calibrated
            if device.id in self._calibrations
            else self._effects.kernel_spread(device)
            for device in devices
        ]
        scales = np.array([(each.compute, each.memory, each.fp64) for each in spreads])
        compute, memory, fp64 = scales.reshape(-1, 3).T
        is_fp64 = np.array([kernel.precision is Precision.FP64 for kernel in kernels])
        scale = np.where(times.is_memory_bound, memory, compute)
        scale = np.where(is_fp64.reshape(-1, 1), fp64, scale)
        library = _UNKNOWN_SOFTWARE_LOG_SIGMA if self._is_unknown_software() else 0.0
        least = np.array([UNTIMED_LOG_SIGMA if untimed_kind(k) else 0.0 for k in kernels])[:, None]
        return replace(
            times,
            time_ns=corrected_ns + floor_ns,
            floor_ns=floor_ns,
            log_sigma=np.maximum(np.hypot(times.log_sigma * scale, library), least),
            shared_log_sigma=np.maximum(np.hypot(times.shared_log_sigma * scale, library), least),
        )

    def _benchmarked(
        self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec], table: EfficiencyTable
    ) -> KernelTimes:
        """Return the times by operator benchmarks, before the effects of whole steps."""
        times = kernel_times(kernels, devices, efficiencies=table)
        rows = [row for row, kernel in enumerate(kernels) if kernel.variant.startswith("grouped")]
        if rows and not self._era.is_before_cudnn_8:
            # Only matrix units compute groups together.
            packed = [packed_groups(kernels[row]) for row in rows]
            is_packed = [[arithmetic_of(kernel, device) == "tensor" for device in devices]
                         for kernel in packed]  # fmt: skip
            packed_ns = kernel_times(packed, devices, efficiencies=table).time_ns
            plain_ns = times.time_ns[rows]
            times.time_ns[rows] = np.where(is_packed, np.minimum(packed_ns, plain_ns), plain_ns)
        return times

    def _set_calibrated(
        self, times: KernelTimes, column: int, kernels: Sequence[Kernel], device: DeviceSpec
    ) -> None:
        """Write the times of a calibrated GPU into its column."""
        by_precision: dict[Precision, list[int]] = {}
        for row, kernel in enumerate(kernels):
            by_precision.setdefault(kernel.precision, []).append(row)
        for precision, rows in by_precision.items():
            key = (device.id, precision)
            if key not in self._own_tables:
                self._own_tables[key] = calibrated_table(
                    self._efficiencies, self._calibrations[device.id], device, precision
                )
            some = [kernels[row] for row in rows]
            own = self._benchmarked(some, [device], self._own_tables[key])
            for each in fields(times):
                getattr(times, each.name)[rows, column] = getattr(own, each.name)[:, 0]

    def _log_factors(self, kernel: Kernel, device: DeviceSpec) -> tuple[float, float]:
        if device.id not in self._calibrations:
            keys = kernel_effect_keys(kernel, device, era=self._era, machine=self._machine)
            return (
                self._effects.log_factor(keys),
                self._effects.log_factor(floor_effect_keys(kernel, device)),
            )
        shared = calibrated_effect_keys(kernel, device, era=self._era)
        own = self._own_effects[device.id].log_factor(own_effect_keys(kernel, device))
        floor = math.log(self._floor_ns(device) / generation_of(device).floor_ns)
        floor_keys = [("floor+family", kernel.family.value)]
        return self._effects.log_factor(shared) + own, floor + self._effects.log_factor(floor_keys)

    def calibration(self, device: DeviceSpec) -> GpuCalibration | None:
        """Return the calibration of this GPU; None if it has none."""
        return self._calibrations.get(device.id)

    def calibration_date(self, device: DeviceSpec) -> str:
        """Return the date of this GPU's calibration, ISO 8601; empty if it has none."""
        own = self.calibration(device)
        return own.machine.date if own else ""

    def launch_costs(self, device: DeviceSpec) -> LaunchCosts:
        """Return the costs of launches and syncs."""
        usual, own = launch_costs(device), self.calibration(device)
        if own is None or own.launch is None:
            return usual
        launch, floor_ns = own.launch, self._floor_ns(device)
        # A waited operator is queued, starts, runs, and is waited for.
        latency_ns = launch.waited_ns - launch.queued_ns - floor_ns - launch.sync_ns
        return msgspec.structs.replace(
            usual,
            latency_ns=max(latency_ns, 0.0),
            gap_ns=max(launch.period_ns - floor_ns, 0.0),
            sync_ns=launch.sync_ns,
        )

    def _floor_ns(self, device: DeviceSpec) -> float:
        """Return the shortest time that a kernel occupies the device."""
        usual_ns, own = generation_of(device).floor_ns, self.calibration(device)
        if own is None or own.launch is None:
            return usual_ns
        # The period of small kernels in a row gives only the sum of floor and gap.
        gap_ns = generation_of(device).gap_ns
        return own.launch.period_ns * usual_ns / (usual_ns + gap_ns)

    def copy_ns(self, num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
        """Return the time of a copy between host and device."""
        own = self.calibration(device)
        for measured in own.copies if own else ():
            if measured.is_pinned is is_pinned:
                return measured.time_ns(num_bytes)
        return copy_ns(num_bytes, device=device, is_pinned=is_pinned)

    def host_op_ns(self, op: Op, lowering: Lowering, host: HostSpec) -> float:
        """Return the host's time to issue an operator, without its launches."""
        return sum(time_ns for _, time_ns in self.host_op_parts(op, lowering, host))

    def host_op_parts(
        self, op: Op, lowering: Lowering, host: HostSpec
    ) -> tuple[tuple[HostPart, float], ...]:
        """Return the same time by kind of work."""
        return tuple(
            (part, time_ns * self._host_factor(part, host.is_measured))
            for part, time_ns in host_op_parts(op, lowering, host)
        )

    @property
    def overlap_loss_fraction(self) -> float:
        """Fraction of the time in which host and device both work that is lost, from 0 to 1."""
        keys = overlap_effect_keys(machine=self._machine)
        return min(1.0, TYPICAL_OVERLAP_LOSS * math.exp(self._effects.log_factor(keys)))

    def dispatch_ns(self, host: HostSpec) -> float:
        """Return the host's time per dispatch, outside of operators: ``op_ns`` in a step.

        Effects on all of the host's work apply to it; the effect of elementwise operators does
        not, since a measured host does not have it.
        """
        if host.is_measured:
            return host.op_ns
        keys = host_effect_keys(
            HostPart.DISPATCH_POINTWISE, era=self._era, machine=self._machine, is_measured=False
        )
        common = [key for key in keys if key[0] != "host class"]
        return host.op_ns * math.exp(self._effects.log_factor(common))

    def host_log_sigma(self, host: HostSpec) -> float:
        """Return the standard deviation of the logarithm of the host's time within a step."""
        if host.is_measured:
            return host.log_sigma
        spread = self._effects.spread
        if self._is_machine_seen:
            return spread.known_host_log_sigma
        if self._is_unknown_software():
            return math.hypot(spread.unknown_host_log_sigma, _UNKNOWN_SOFTWARE_HOST_LOG_SIGMA)
        return spread.unknown_host_log_sigma

    def _host_factor(self, part: HostPart, is_measured: bool) -> float:
        factor = self._host_factors.get((part, is_measured))
        if factor is None:
            keys = host_effect_keys(
                part, era=self._era, machine=self._machine, is_measured=is_measured
            )
            factor = math.exp(self._effects.log_factor(keys))
            self._host_factors[part, is_measured] = factor
        return factor

    def _is_unknown_software(self) -> bool:
        """Return whether the software is unknown and no steps of the machine are in the fit."""
        return self._era is Era.UNKNOWN and not self._is_machine_seen


@cache
def shipped_costs() -> StepCosts:
    """Return the shipped cost model, for current software, with calibrated GPUs."""
    return StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        calibrations=load_calibrations(),
    )


def read_calibrations_again() -> None:
    """Make predictions of this process use the current files of calibrated GPUs."""
    for cached in (own_calibration_files, load_catalogue, devices_by_key, load_calibrations,
                   shipped_costs):  # fmt: skip
        cached.cache_clear()
