"""What scenarios make of the costs of one host and several devices.

Arrays have an axis for devices D and one for scenarios K, in this order; those of the host have K
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.cost import KernelTimes
from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.bound import Bound
from breakeven.simulate.cost_model import CostModel
from breakeven.simulate.plan import Array
from breakeven.simulate.scenario import Scenario
from breakeven.simulate.spread import spread_in_step

# Pageable copies pass through a staging buffer at the pace of the host's memcpy, which varies
# between machines by about a third in either direction (90 %).
_COPY_LOG_SIGMA = 0.18


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Factors on times, and the times that do not depend on the event.

    Args:
        scale: 0 for a resource that is free of charge, 1 otherwise: (K).
        kernel_deviation: Standard deviations of the kernels: (K).
        host: Factor of the host's own time: (K).
        issue: Factor of the host's time to issue operators of the device: (K).
        copy: Factor of copies: (K).
        read: Factor of what a sync reads: (K).
        launch_ns: The host's time of one launch: (D, K).
        copy_launch_ns: That of a queued copy: (D, K).
        latency_ns: From a launch to its start on an idle device: (D, K).
        gap_ns: From the end of a kernel to the start of the next: (D, K).
        lead_ns: The host's time before the first event: that to launch a captured step, or its own
            outside of operators: (D, K).
        graph_launch_ns: That to launch a graph of the script, 0 where the step is captured: (D, K).
        sync_ns: The host's time of a sync on an idle device: (D, K).
    """

    scale: dict[Bound, Array]
    kernel_deviation: Array
    host: Array
    issue: Array
    copy: Array
    read: Array
    launch_ns: Array
    copy_launch_ns: Array
    latency_ns: Array
    gap_ns: Array
    lead_ns: Array
    graph_launch_ns: Array
    sync_ns: Array

    def kernel_ns(self, times: KernelTimes, counts: Sequence[int]) -> Array:
        """Return the times of the different kernels of one program, shaped (kernels, D, K).

        How far a kernel deviates depends on the program that it is part of.

        Args:
            times: As the cost model gives them.
            counts: How often each runs in the step.
        """
        spread = spread_in_step(times.time_ns, times.log_sigma, times.shared_log_sigma, counts)
        return self.deviating_ns(times, spread)

    def deviating_ns(self, times: KernelTimes, log_sigma: Array) -> Array:
        """Return the times of kernels whose logarithms spread by ``log_sigma``, as above."""
        deviation, inverse = np.unique(self.kernel_deviation, return_inverse=True)
        factor = np.exp(log_sigma[..., None] * deviation)[..., inverse]
        scale = np.where(
            times.is_memory_bound[..., None],
            self.scale[Bound.MEMORY],
            self.scale[Bound.COMPUTE],
        )
        return times.time_ns[..., None] * factor * scale


def rates_of(
    costs: CostModel,
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    scenarios: Sequence[Scenario],
) -> Rates:
    """Return what ``scenarios`` make of the costs."""
    deviation = np.array([scenario.deviation for scenario in scenarios])
    scale = {bound: np.array([scenario.scale(bound) for scenario in scenarios]) for bound in Bound}
    is_captured = np.array([scenario.is_captured for scenario in scenarios])
    is_issued = scale[Bound.LAUNCH] * ~is_captured
    host_factor = np.exp(deviation * host.log_sigma)
    copy_factor = np.exp(deviation * _COPY_LOG_SIGMA)

    launches = [costs.launch_costs(device) for device in devices]
    sigma = np.array([cost.log_sigma for cost in launches])
    factor = np.exp(deviation * sigma[:, None])

    def column(values: list[float]) -> Array:
        return np.array(values)[:, None] * factor

    # A captured step costs the host one launch, whatever its size.
    launch_ns = column([cost.launch_ns for cost in launches])
    graph_launch_ns = column([cost.graph_launch_ns for cost in launches])
    return Rates(
        scale=scale,
        kernel_deviation=np.array([scenario.kernels_deviate_by for scenario in scenarios]),
        host=host_factor,
        issue=host_factor * is_issued,
        copy=copy_factor * scale[Bound.TRANSFER],
        read=copy_factor * scale[Bound.SYNC],
        launch_ns=launch_ns * is_issued,
        copy_launch_ns=launch_ns * scale[Bound.TRANSFER],
        latency_ns=column([cost.latency_ns for cost in launches]),
        gap_ns=column([cost.gap_ns for cost in launches]),
        lead_ns=graph_launch_ns * is_captured + host.step_ns * host_factor * is_issued,
        graph_launch_ns=graph_launch_ns * is_issued,
        sync_ns=column([cost.sync_ns for cost in launches]) * scale[Bound.SYNC],
    )
