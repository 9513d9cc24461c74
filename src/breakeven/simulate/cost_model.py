"""What the simulator needs to know of costs; ``breakeven.cost.StepCosts`` provides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from breakeven.cost import HostPart, Kernel, KernelTimes, LaunchCosts, Lowering
    from breakeven.device import DeviceSpec, HostSpec
    from breakeven.trace import Op, Settings


class CostModel(Protocol):
    """Costs of operators, kernels, launches and copies. ``breakeven.cost.StepCosts`` is one."""

    @property
    def overlap_loss_fraction(self) -> float:
        """Return the share of the time in which host and device both work that is lost."""
        ...

    def lower(self, op: Op, settings: Settings) -> Lowering:
        """Return the kernels of an operator."""
        ...

    def kernel_times(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> KernelTimes:
        """Return the times of all kernels on all devices, as (kernel, device) arrays."""
        ...

    def launch_costs(self, device: DeviceSpec) -> LaunchCosts:
        """Return what launches and syncs cost."""
        ...

    def copy_ns(self, num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
        """Return the time of a copy between host and device."""
        ...

    def host_op_ns(self, op: Op, lowering: Lowering, host: HostSpec) -> float:
        """Return the host's time to issue an operator, without its launches."""
        ...

    def host_op_parts(
        self, op: Op, lowering: Lowering, host: HostSpec
    ) -> tuple[tuple[HostPart, float], ...]:
        """Return the same time by kind of work."""
        ...

    def dispatch_ns(self, host: HostSpec) -> float:
        """Return the host's time per dispatch, outside of operators."""
        ...
