"""The cost model that ships: benchmarks of operators, corrected by what whole steps showed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache

import numpy as np

from breakeven.cost.efficiency import EfficiencyTable, load_efficiencies
from breakeven.cost.family_times import KernelTimes, datasheet_ns, group_key, kernel_times
from breakeven.cost.host_cost import HostPart, host_op_parts
from breakeven.cost.kernel import Kernel, Lowering
from breakeven.cost.launch import LaunchCosts, copy_ns, launch_costs
from breakeven.cost.lowering import lower
from breakeven.cost.step_effects import (
    TYPICAL_OVERLAP_LOSS,
    Era,
    StepEffects,
    floor_effect_keys,
    host_effect_keys,
    kernel_effect_keys,
    load_step_effects,
    overlap_effect_keys,
)
from breakeven.device import DeviceSpec, HostSpec, generation_of
from breakeven.trace import Op, Settings


class StepCosts:
    """Costs of operators, kernels, launches and copies within a step.

    Args:
        efficiencies: What benchmarks of operators showed.
        effects: What whole steps showed.
        era: Software.
        machine: Name of the machine where its steps may have been seen, or empty.
    """

    def __init__(
        self,
        *,
        efficiencies: EfficiencyTable,
        effects: StepEffects,
        era: Era = Era.TORCH_2,
        machine: str = "",
    ) -> None:
        self._efficiencies = efficiencies
        self._effects = effects
        self._era = era
        self._machine = machine
        self._host_factors: dict[tuple[HostPart, bool], float] = {}

    def lower(self, op: Op, settings: Settings) -> Lowering:
        """Return the kernels of an operator."""
        return lower(op, settings)

    def kernel_times(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> KernelTimes:
        """Return the times of all kernels on all devices, as (kernel, device) arrays."""
        times = kernel_times(kernels, devices, efficiencies=self._efficiencies)
        # The effects tell classes of kernels apart, not their sizes.
        classes: dict[Hashable, int] = {}
        rows = np.array(
            [classes.setdefault(group_key(kernel), len(classes)) for kernel in kernels],
            dtype=np.intp,
        )
        members = dict(zip(rows.tolist(), kernels, strict=True))
        factors = np.array(
            [
                [self._kernel_factors(members[row], device) for device in devices]
                for row in range(len(classes))
            ]
        ).reshape(len(classes), len(devices), 2)[rows]
        launches = np.array([float(kernel.launches) for kernel in kernels]).reshape(-1, 1)
        floor_ns = launches * np.array([[generation_of(device).floor_ns for device in devices]])
        busy_ns = times.time_ns - floor_ns
        # What steps showed of a class must not carry any kernel past what its device can do.
        corrected_ns = np.maximum(
            busy_ns * factors[..., 0], np.minimum(busy_ns, datasheet_ns(kernels, devices))
        )
        scale = np.array([[self._sigma_scale(device) for device in devices]])
        return KernelTimes(
            time_ns=corrected_ns + floor_ns * factors[..., 1],
            log_sigma=times.log_sigma * scale,
            shared_log_sigma=times.shared_log_sigma * scale,
            is_memory_bound=times.is_memory_bound,
        )

    def launch_costs(self, device: DeviceSpec) -> LaunchCosts:
        """Return what launches and syncs cost."""
        return launch_costs(device)

    def copy_ns(self, num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
        """Return the time of a copy between host and device."""
        return copy_ns(num_bytes, device=device, is_pinned=is_pinned)

    def host_op_ns(self, op: Op, lowering: Lowering, host: HostSpec) -> float:
        """Return the host's time to issue an operator, without its launches."""
        is_measured, total_ns = host.is_measured, 0.0
        for part, time_ns in host_op_parts(op, lowering, host):
            total_ns += time_ns * self._host_factor(part, is_measured)
        return total_ns

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
        """Share of the time in which host and device both work that is lost, from 0 to 1."""
        keys = overlap_effect_keys(machine=self._machine)
        return min(1.0, TYPICAL_OVERLAP_LOSS * math.exp(self._effects.log_factor(keys)))

    def dispatch_ns(self, host: HostSpec) -> float:
        """Return the host's time per dispatch, outside of operators: ``op_ns`` in a step.

        What is common to all work of the host applies to it, what is peculiar to elementwise
        operators does not: a measured host knows nothing of that.
        """
        if host.is_measured:
            return host.op_ns
        keys = host_effect_keys(
            HostPart.DISPATCH_POINTWISE, era=self._era, machine=self._machine, is_measured=False
        )
        common = [key for key in keys if key[0] != "host class"]
        return host.op_ns * math.exp(self._effects.log_factor(common))

    def host_log_sigma(self, host: HostSpec) -> float:
        """Return how far the host's time within a step may be off, as a sigma of its logarithm."""
        if host.is_measured:
            return host.log_sigma
        spread = self._effects.spread
        if self._machine and self._effects.has(("host machine", self._machine)):
            return spread.known_host_log_sigma
        return spread.unknown_host_log_sigma

    def _kernel_factors(self, kernel: Kernel, device: DeviceSpec) -> tuple[float, float]:
        keys = kernel_effect_keys(kernel, device, era=self._era, machine=self._machine)
        return (
            math.exp(self._effects.log_factor(keys)),
            math.exp(self._effects.log_factor(floor_effect_keys(kernel, device))),
        )

    def _host_factor(self, part: HostPart, is_measured: bool) -> float:
        factor = self._host_factors.get((part, is_measured))
        if factor is None:
            keys = host_effect_keys(
                part, era=self._era, machine=self._machine, is_measured=is_measured
            )
            factor = math.exp(self._effects.log_factor(keys))
            self._host_factors[part, is_measured] = factor
        return factor

    def _sigma_scale(self, device: DeviceSpec) -> float:
        spread = self._effects.spread
        is_calibrated = self._effects.has(("device", device.id))
        return spread.calibrated_scale if is_calibrated else spread.unseen_scale


@cache
def shipped_costs() -> StepCosts:
    """Return the cost model that ships, for the software of today."""
    return StepCosts(efficiencies=load_efficiencies(), effects=load_step_effects())
