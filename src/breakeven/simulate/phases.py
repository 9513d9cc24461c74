"""The host's and the device's share of a step, by what happens once and what on every device."""

from __future__ import annotations

import msgspec

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.program import Program
from breakeven.simulate.sizes import is_zeroing
from breakeven.trace import Copy, Op, Phase


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a step on one device, in nanoseconds.

    Args:
        forward_host_ns: Issue of the forward pass.
        backward_host_ns: Issue of the backward pass.
        other_host_ns: The rest of the host's issue: gradients set to zero, optimizer.
        forward_device_ns: Kernels of the forward pass.
        backward_device_ns: Kernels of the backward pass.
        other_device_ns: The other kernels.
        copy_ns: Copies of the batch to the device.
    """

    forward_host_ns: float
    backward_host_ns: float
    other_host_ns: float
    forward_device_ns: float
    backward_device_ns: float
    other_device_ns: float
    copy_ns: float

    @property
    def host_ns(self) -> float:
        """Return the host's issue of the step."""
        return self.forward_host_ns + self.backward_host_ns + self.other_host_ns

    @property
    def device_ns(self) -> float:
        """Return the kernels of the step."""
        return self.forward_device_ns + self.backward_device_ns + self.other_device_ns


def phase_times(program: Program, device: DeviceSpec, host: HostSpec) -> PhaseTimes:
    """Return the times of a step by phase, with nothing waiting for anything."""
    costs = program.costs
    launch = costs.launch_costs(device)
    kernels = tuple(dict.fromkeys(program.kernels))
    times_ns = dict(
        zip(kernels, costs.kernel_times(kernels, [device]).time_ns[:, 0].tolist(), strict=True)
        if kernels
        else ()
    )
    host_ns = dict.fromkeys(Phase, 0.0)
    device_ns = dict.fromkeys(Phase, 0.0)
    copy_ns = 0.0
    for event, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if isinstance(event, Copy) and event.is_to_device:
            copy_ns += costs.copy_ns(event.num_bytes, device=device, is_pinned=event.is_pinned)
        if not isinstance(event, Op) or lowering is None:
            continue
        phase = Phase.OPTIMIZER if is_zeroing(event) else event.phase
        launches = sum(kernel.launches for kernel in lowering.kernels)
        host_ns[phase] += costs.host_op_ns(event, lowering, host) + launches * launch.launch_ns
        device_ns[phase] += launches * launch.gap_ns + sum(
            times_ns[kernel] for kernel in lowering.kernels
        )
    return PhaseTimes(
        forward_host_ns=host_ns[Phase.FORWARD],
        backward_host_ns=host_ns[Phase.BACKWARD],
        other_host_ns=host_ns[Phase.OPTIMIZER] + host_ns[Phase.DATA] + host.step_ns,
        forward_device_ns=device_ns[Phase.FORWARD],
        backward_device_ns=device_ns[Phase.BACKWARD],
        other_device_ns=device_ns[Phase.OPTIMIZER] + device_ns[Phase.DATA],
        copy_ns=copy_ns,
    )
