"""What single events cost, before any scenario."""

from __future__ import annotations

from breakeven.device import DeviceSpec
from breakeven.simulate.bound import Bound
from breakeven.simulate.cost_model import CostModel
from breakeven.trace import Copy, HostWork, Op, Phase, Sync

# What a sync reads back within its fixed cost: one number of the widest dtype but complex128.
_VALUE_BYTES = 8


def moved_ns(copy: Copy, device: DeviceSpec, costs: CostModel) -> float:
    """Return the time of a copy on the device.

    The fixed part of a copy's cost is the call and the host's wait for it. A queued copy has
    neither: it is launched like a kernel and keeps the device busy while its bytes move.
    """
    time_ns = costs.copy_ns(copy.num_bytes, device=device, is_pinned=copy.is_pinned)
    if not copy.is_blocking:
        time_ns -= costs.copy_ns(1, device=device, is_pinned=copy.is_pinned)
    return max(0.0, time_ns)


def read_ns(sync: Sync, device: DeviceSpec, costs: CostModel) -> float:
    """Return the time of what a sync reads beyond one value, which its fixed cost covers."""
    if sync.num_bytes <= _VALUE_BYTES:
        return 0.0
    one_ns, all_ns = (
        costs.copy_ns(size, device=device, is_pinned=False)
        for size in (_VALUE_BYTES, sync.num_bytes)
    )
    return max(0.0, all_ns - one_ns)


def recorded_ns(event: Op | HostWork) -> float:
    """Return the time of what the CPU computes itself, as it was recorded."""
    return event.host_ns if isinstance(event, Op) else event.duration_ns


def recorded_bound(event: Op | HostWork) -> Bound:
    """Return the resource that such an event uses."""
    is_optimizer = event.phase is Phase.OPTIMIZER and isinstance(event, Op)
    return Bound.HOST_OPTIMIZER if is_optimizer else Bound.HOST_DATA


def per_batch_ns(work: HostWork) -> float:
    """Return the time in which the workers of a loader finish one batch."""
    return work.duration_ns / work.num_workers
