"""A step that several devices of one machine share, predicted from the step on one of them.

Each device gets a batch of the recorded size. `predict_on_gpus` divides it among them if asked to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from breakeven.cost import (
    PeerLink,
    PeerPath,
    all_reduce_ns,
    broadcast_ns,
    collective_ns,
    peer_link,
    shipped_costs,
)
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import BreakevenError, Caveat
from breakeven.simulate.predict import StepPrediction, predict_steps
from breakeven.simulate.program import Z_90, Bound, CostModel, build_program
from breakeven.simulate.shared_step import (
    ModelSize,
    MultiGpuSetup,
    MultiGpuTable,
    PhaseTimes,
    Strategy,
    load_multi_gpu_table,
    model_size,
    phase_times,
)
from breakeven.timing import Estimate
from breakeven.trace import ScaledTrace, StepTrace

# `nn.DataParallel` packs parameters into broadcasts, and gradients into sums, of this size.
# Source: torch/nn/parallel/comm.py, `buffer_size` (10 MB).
_PACKET_BYTES = 10 * 2**20
# DDP exchanges gradients in buckets of this size.
# Source: `bucket_cap_mb` of torch.nn.parallel.DistributedDataParallel.
_BUCKET_BYTES = 25 * 2**20
# More GPUs than in one machine of a cloud get a caveat; the prediction does not change.
_MOST_IN_A_MACHINE = 16


_WAYS = {
    PeerPath.FABRIC: "reach each other over their boards' own links",
    PeerPath.BRIDGE: "are bridged",
    PeerPath.PCIE: "reach each other directly over PCIe",
    PeerPath.HOST: "reach each other through the memory of the host",
}


class MultiGpuPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step that several devices share.

    Args:
        setup: The devices.
        step: The step, as on one device: its batch size is that of each device.
        single: The step on one device alone.
        communication_ns: Time of the exchange between devices, hidden behind kernels or not.
    """

    setup: MultiGpuSetup
    step: StepPrediction
    single: StepPrediction
    communication_ns: float

    @property
    def factor(self) -> float:
        """Return the ratio of its time to that on one device; 1 is perfect scaling."""
        return self.step.estimate.value_ns / self.single.estimate.value_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTimes:
    """The limits of a shared step, in nanoseconds.

    Args:
        step_ns: The step, without the waits of the lone step.
        host_ns: The host's own work.
        communication_ns: Time of the exchange between devices, hidden or not.
        is_host_bound: Whether the host limits the step.
    """

    step_ns: float
    host_ns: float
    communication_ns: float
    is_host_bound: bool


def predict_multi_gpu(
    single: StepPrediction,
    times: PhaseTimes,
    size: ModelSize,
    host: HostSpec,
    setup: MultiGpuSetup,
    *,
    costs: CostModel | None = None,
    table: MultiGpuTable | None = None,
) -> MultiGpuPrediction:
    """Return the prediction of a step that several devices share.

    Args:
        single: The step on one device, with the batch of one device.
        times: Its times by phase.
        size: The model.
        host: Host that issues the work.
        setup: Number of devices and strategy.
        costs: The cost model; the shipped one by default.
        table: Costs of several devices; the shipped ones by default.

    Raises:
        ValueError: There are fewer than two devices.
    """
    device, host = single.device, host.for_device(single.device)
    table, costs = table or load_multi_gpu_table(), costs or shipped_costs()
    link = peer_link(
        device,
        setup.num_devices,
        has_peer_access=setup.has_peer_access,
        has_bridge=setup.has_bridge,
    )
    shared = shared_times(times, size, setup, link, costs.dispatch_ns(host), table)
    value_ns = shared_step_ns(shared, times, single.estimate.value_ns)
    # Add the error of the factor to that of the lone step. If the host limits only the shared step,
    # the host's error applies.
    lone, least = single.estimate, Z_90 * host.log_sigma if shared.is_host_bound else 0.0
    factor_width = Z_90 * table.log_sigma(setup.strategy)
    below, above = (
        math.hypot(max(width, least), factor_width)
        for width in (
            math.log(lone.value_ns / lone.low_ns),
            math.log(lone.high_ns / lone.value_ns),
        )
    )
    bound = single.bound
    if shared.is_host_bound:
        is_on_host = bound in (Bound.HOST_DATA, Bound.HOST_OPTIMIZER, Bound.SYNC)
        bound = bound if is_on_host else Bound.LAUNCH
    elif bound is Bound.LAUNCH or 2 * shared.communication_ns > shared.step_ns:
        # A lone step that is bound by launches is not bound by its kernels, so the shared one waits
        # for the exchange.
        bound = Bound.TRANSFER
    caveats = single.caveats
    if setup.has_peer_access is None:
        message = f"Assumed that the {setup.num_devices} × {device.name} {_WAYS[link.path]}."
        caveats += (Caveat(code="assumed-peer-path", message=message),)
    # DDP's buckets, and the sums of `nn.DataParallel`, hold the gradients a second time.
    peak_memory_bytes = single.peak_memory_bytes + round(size.gradient_bytes)
    return MultiGpuPrediction(
        setup=setup,
        step=msgspec.structs.replace(
            single,
            estimate=Estimate.predicted(
                value_ns, value_ns * math.exp(-below), value_ns * math.exp(above)
            ),
            bound=bound,
            host_ns=shared.host_ns,
            launch_ns=max(0.0, shared.host_ns - single.host_ns + single.launch_ns),
            device_busy_ns=single.device_busy_ns + shared.communication_ns,
            peak_memory_bytes=peak_memory_bytes,
            fits=peak_memory_bytes <= device.memory_bytes,
            caveats=caveats,
        ),
        single=single,
        communication_ns=shared.communication_ns,
    )


def predict_on_gpus(
    step: StepTrace | ScaledTrace,
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    num_gpus: int,
    *,
    keeps_global_batch: bool,
    has_peer_access: bool | None = None,
    costs: CostModel | None = None,
) -> tuple[MultiGpuPrediction, ...]:
    """Predict a step on one or several GPUs of one machine, by DDP, for each kind of GPU.

    Args:
        step: The recorded step. One process of a distributed script stands for all of them.
        devices: Kinds of GPUs; ``peer_bytes_per_s`` is the link between GPUs of one kind.
        host: Host that issues the work.
        num_gpus: Number of GPUs.
        keeps_global_batch: Whether the GPUs divide the batch of the script (strong scaling);
            otherwise each has a batch of that size (weak scaling).
        has_peer_access: As in `MultiGpuSetup`.
        costs: The cost model; the shipped one by default.

    Raises:
        BreakevenError: The batch cannot be divided: its size is unknown, it has fewer samples than
            there are GPUs, or the step was recorded at one size only.
        ValueError: ``num_gpus`` is below 1.
    """
    if num_gpus < 1:
        raise ValueError(f"num_gpus must be at least 1, not {num_gpus}")
    trace = step.first if isinstance(step, ScaledTrace) else step
    caveats: tuple[Caveat, ...] = ()
    if keeps_global_batch:
        trace, caveats = _with_part_of_batch(step, trace, num_gpus)
    if num_gpus > _MOST_IN_A_MACHINE:
        message = f"Predicted as if {num_gpus} GPUs were in one machine, on one link."
        caveats += (Caveat(code="assumed-one-machine", message=message),)
    setup = MultiGpuSetup(
        strategy=Strategy.DDP, num_devices=num_gpus, has_peer_access=has_peer_access
    )
    program = build_program(trace, costs=costs)
    singles = predict_steps(program, devices, host)
    if num_gpus == 1:
        found = [
            MultiGpuPrediction(setup=setup, step=single, single=single, communication_ns=0)
            for single in singles
        ]
    else:
        times, size = phase_times(program, devices, host), model_size(trace)
        found = [
            predict_multi_gpu(single, own, size, host, setup, costs=costs)
            for single, own in zip(singles, times, strict=True)
        ]
    replace = msgspec.structs.replace
    return tuple(
        replace(one, step=replace(one.step, caveats=(*one.step.caveats, *caveats))) for one in found
    )


def _with_part_of_batch(
    step: StepTrace | ScaledTrace, trace: StepTrace, num_gpus: int
) -> tuple[StepTrace, tuple[Caveat, ...]]:
    """Return the step with the batch of the slowest GPU, and a caveat if others have less."""
    whole = (trace.batch_size or 0) * trace.num_processes
    part = math.ceil(whole / num_gpus)
    because = ""
    if not whole:
        because = "its size is unknown"
    elif whole < num_gpus:
        because = f"it has {whole} samples"
    elif part != trace.batch_size and not isinstance(step, ScaledTrace):
        because = "the step was recorded at one size"
    if because:
        raise BreakevenError(
            f"cannot divide the batch of a step among {num_gpus} GPUs: {because}",
            hint="give each GPU a batch of the script's size",
        )
    if isinstance(step, ScaledTrace):
        trace = step.at(part)
    if whole % num_gpus == 0:
        return trace, ()
    message = f"{num_gpus} GPUs share {whole} samples: predicted with {part} on each."
    return trace, (Caveat(code="uneven-batch", message=message),)


def shared_times(
    times: PhaseTimes,
    size: ModelSize,
    setup: MultiGpuSetup,
    link: PeerLink,
    dispatch_ns: float,
    table: MultiGpuTable,
) -> SharedTimes:
    """Return the limits of a shared step.

    Args:
        times: The step on one device.
        size: The model.
        setup: The devices.
        link: Link between them.
        dispatch_ns: The host's time to dispatch an elementwise operator.
        table: Costs of several devices.
    """
    if setup.strategy is Strategy.DDP:
        return _ddp_times(times, size, setup.num_devices, link, table)
    return _data_parallel_times(times, size, setup.num_devices, link, dispatch_ns, table)


def shared_step_ns(shared: SharedTimes, times: PhaseTimes, single_ns: float) -> float:
    """Return the time of a shared step.

    The lone step's time beyond the longest of its host's and device's paths (waits, syncs) is kept.
    """
    lone_ns, _ = _ways_ns(times, start_ns=0.0, first_kernel_ns=0.0)
    return shared.step_ns + max(0.0, single_ns - times.copy_ns - lone_ns)


def lone_step_ns(times: PhaseTimes, *, overlap_loss_fraction: float) -> float:
    """Return the time of the lone step if the host waits only for copies of the batch.

    Args:
        times: The step by phase.
        overlap_loss_fraction: Lost fraction of the time in which host and device both work.
    """
    end_ns, _ = _ways_ns(times, start_ns=0.0, first_kernel_ns=0.0)
    both_ns = max(0.0, times.host_ns + times.device_ns - end_ns)
    return times.copy_ns + end_ns + overlap_loss_fraction * both_ns


def _ways_ns(times: PhaseTimes, *, start_ns: float, first_kernel_ns: float) -> tuple[float, bool]:
    """Return the end of a step, and whether the host's path through it is the longest.

    The host issues the forward pass, then the backward pass. The device may be behind from the
    start, or catch up with the host in the forward pass and fall behind in the backward pass.

    Args:
        times: The step as one device sees it.
        start_ns: Time at which the host begins to issue the forward pass.
        first_kernel_ns: Earliest time at which the device may begin it.
    """
    host_ns = start_ns + times.host_ns
    device_ns = max(
        max(start_ns, first_kernel_ns) + times.device_ns,
        start_ns + times.forward_host_ns + times.backward_device_ns + times.other_device_ns,
    )
    return max(host_ns, device_ns), host_ns >= device_ns


def _data_parallel_times(
    times: PhaseTimes,
    size: ModelSize,
    num_devices: int,
    link: PeerLink,
    dispatch_ns: float,
    table: MultiGpuTable,
) -> SharedTimes:
    """Follow `torch.nn.DataParallel.forward`: scatter, replicate, apply in threads, gather.

    A thread per device issues the backward pass, without the interpreter. It ends with the sum of
    all gradients on the first device, which waits for the last of them.
    """
    costs = table.data_parallel
    num_tensors = size.num_parameter_tensors + size.num_buffer_tensors
    replicate_ns = dispatch_ns * (
        costs.step_dispatches
        + costs.replica_dispatches * num_devices
        + costs.tensor_dispatches * num_tensors
        + costs.replica_tensor_dispatches * num_tensors * num_devices
    )
    further = num_devices - 1
    shared = msgspec.structs.replace(
        times,
        forward_host_ns=times.forward_host_ns * (1 + costs.issue_fraction * further),
        forward_device_ns=times.forward_device_ns * (1 + costs.slowest_fraction),
        backward_device_ns=times.backward_device_ns * (1 + costs.slowest_fraction),
    )
    # First, the whole batch goes to the first device.
    copy_ns = times.copy_ns * num_devices
    broadcast_all_ns = _packed_ns(size.parameter_bytes + size.buffer_bytes, num_devices, link)
    sum_ns = _packed_ns(size.gradient_bytes, num_devices, link)
    end_ns, is_host_bound = _ways_ns(
        shared, start_ns=replicate_ns, first_kernel_ns=broadcast_all_ns
    )
    return SharedTimes(
        step_ns=copy_ns + end_ns + sum_ns,
        host_ns=replicate_ns + shared.host_ns,
        communication_ns=broadcast_all_ns + sum_ns,
        is_host_bound=is_host_bound,
    )


def _ddp_times(
    times: PhaseTimes, size: ModelSize, num_devices: int, link: PeerLink, table: MultiGpuTable
) -> SharedTimes:
    """Each process issues its own step; gradients are exchanged during the backward pass."""
    if size.exchanges is None:
        num_buckets = math.ceil(size.gradient_bytes / _BUCKET_BYTES)
        buckets = [size.gradient_bytes / num_buckets] * num_buckets if num_buckets else []
        others_ns = broadcast_ns(size.buffer_bytes, num_devices, link)
    else:
        buckets = [float(each.num_bytes) for each in size.exchanges if each.is_bucket]
        others_ns = sum(
            collective_ns(each.kind, each.num_bytes, num_devices, link)
            for each in size.exchanges
            if not each.is_bucket
        )
    reduce_ns = sum(all_reduce_ns(num_bytes, num_devices, link) for num_bytes in buckets)
    exposed_ns = max(table.ddp.exposed_fraction * reduce_ns, reduce_ns - times.backward_device_ns)
    exposed_ns += table.ddp.local_ns_per_byte * sum(buckets)
    shared = msgspec.structs.replace(
        times,
        forward_device_ns=times.forward_device_ns + others_ns,
        backward_device_ns=times.backward_device_ns + exposed_ns,
    )
    end_ns, is_host_bound = _ways_ns(shared, start_ns=0.0, first_kernel_ns=0.0)
    return SharedTimes(
        step_ns=times.copy_ns + end_ns,
        host_ns=times.host_ns,
        communication_ns=reduce_ns + others_ns,
        is_host_bound=is_host_bound,
    )


def _packed_ns(num_bytes: float, num_devices: int, link: PeerLink) -> float:
    return broadcast_ns(
        num_bytes, num_devices, link, num_calls=math.ceil(num_bytes / _PACKET_BYTES)
    )
