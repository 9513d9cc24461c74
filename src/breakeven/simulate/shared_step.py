"""A step shared by several devices: setup, model size, phase times, and fitted costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

import msgspec
import numpy as np

from breakeven.cost import read_shipped
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import Caveat
from breakeven.simulate.program import Program
from breakeven.trace import Collective, Op, Phase, StepTrace, TensorSpec

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a model.

    Args:
        parameter_bytes: All parameters, in the model's own dtype.
        num_parameter_tensors: Number of parameter tensors.
        gradient_bytes: Gradients exchanged after a backward pass; 0 without one.
        buffer_bytes: Buffers, such as running statistics.
        num_buffer_tensors: Number of buffer tensors.
        exchanges: What the processes of a distributed script exchange; None if the script joins no
            process group. Then DDP's defaults apply to the parameters and buffers.
    """

    parameter_bytes: float
    num_parameter_tensors: int
    gradient_bytes: float
    buffer_bytes: float = 0.0
    num_buffer_tensors: int = 0
    exchanges: tuple[Collective, ...] | None = None


def model_size(trace: StepTrace) -> ModelSize:
    """Return the size of the model that ``trace`` runs.

    A parameter is a tensor of floats that a forward pass reads but does not make; the running
    statistics of a batch norm, and integers, are buffers. A batch that the step does not copy looks
    like a parameter, so it counts as one tensor too many; the bytes of all parameters come from
    the trace.
    """
    made = {copy.storage for copy in trace.copies if copy.storage >= 0}
    owned: dict[int, TensorSpec] = {}
    buffers: dict[int, TensorSpec] = {}
    num_counters = 0
    for op in trace.ops:
        if op.phase is not Phase.FORWARD or op.is_on_host or is_zeroing(op):
            continue
        # (input, weight, bias, running mean, running variance) of every variant that keeps them.
        kept = op.inputs[3:5] if "batch_norm" in op.name else ()
        statistics = set(map(id, kept))
        num_counters += bool(statistics)
        for tensor in op.inputs:
            if tensor.storage in made or not tensor.shape:
                continue
            is_buffer = id(tensor) in statistics or tensor.dtype not in _FLOATS
            (buffers if is_buffer else owned).setdefault(tensor.storage, tensor)
        made.update(tensor.storage for tensor in op.outputs if tensor.storage not in owned)
    sizes = Counter[int]()
    for tensor in owned.values():
        sizes[tensor.element_bytes] += tensor.num_bytes
    element_bytes = max(sizes, key=sizes.__getitem__, default=0)
    parameter_bytes = float(trace.num_parameters * element_bytes)
    has_backward = any(op.phase is Phase.BACKWARD for op in trace.ops)
    return ModelSize(
        parameter_bytes=parameter_bytes,
        num_parameter_tensors=len(owned),
        gradient_bytes=parameter_bytes if has_backward else 0.0,
        buffer_bytes=float(sum(tensor.num_bytes for tensor in buffers.values())),
        # Batch norms also have a step counter, which evaluation does not read.
        num_buffer_tensors=len(buffers) + num_counters,
        exchanges=None if trace.group is msgspec.UNSET else trace.group.collectives,
    )


def is_zeroing(op: Op) -> bool:
    """Return whether ``op`` sets gradients to zero: once per step for any number of replicas."""
    return op.phase is Phase.FORWARD and op.name.startswith(("aten.zero_.", "aten._foreach_zero_."))


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
        """Return the host's time to issue the step."""
        return self.forward_host_ns + self.backward_host_ns + self.other_host_ns

    @property
    def device_ns(self) -> float:
        """Return the time of the step's kernels."""
        return self.forward_device_ns + self.backward_device_ns + self.other_device_ns


def phase_times(
    program: Program, devices: Sequence[DeviceSpec], host: HostSpec
) -> tuple[PhaseTimes, ...]:
    """Return the times of a step by phase on each device, without any waits."""
    costs, hosts = program.costs, [host.for_device(device) for device in devices]
    launches = [costs.launch_costs(device) for device in devices]
    kernels = {kernel: i for i, kernel in enumerate(dict.fromkeys(program.kernels))}
    num_runs = {phase: np.zeros(len(kernels)) for phase in Phase}
    num_launches = dict.fromkeys(Phase, 0)
    issue_ns = {feeding: dict.fromkeys(Phase, 0.0) for feeding in hosts}
    for event, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if not isinstance(event, Op) or lowering is None:
            continue
        phase = Phase.OPTIMIZER if is_zeroing(event) else event.phase
        for feeding, own_ns in issue_ns.items():
            own_ns[phase] += costs.host_op_ns(event, lowering, feeding)
        for kernel in lowering.kernels:
            num_launches[phase] += kernel.launches
            num_runs[phase][kernels[kernel]] += 1
    times_ns = np.zeros((0, len(devices)))
    if kernels:
        times_ns = costs.kernel_times(tuple(kernels), devices).time_ns
    work_ns = {phase: (runs @ times_ns).tolist() for phase, runs in num_runs.items()}
    found: list[PhaseTimes] = []
    for d, (device, feeding, launch) in enumerate(zip(devices, hosts, launches, strict=True)):
        host_ns = {p: issue_ns[feeding][p] + num_launches[p] * launch.launch_ns for p in Phase}
        device_ns = {p: work_ns[p][d] + num_launches[p] * launch.gap_ns for p in Phase}
        times = PhaseTimes(
            forward_host_ns=host_ns[Phase.FORWARD],
            backward_host_ns=host_ns[Phase.BACKWARD],
            other_host_ns=host_ns[Phase.OPTIMIZER] + host_ns[Phase.DATA] + feeding.step_ns,
            forward_device_ns=device_ns[Phase.FORWARD],
            backward_device_ns=device_ns[Phase.BACKWARD],
            other_device_ns=device_ns[Phase.OPTIMIZER] + device_ns[Phase.DATA],
            copy_ns=sum(
                costs.copy_ns(copy.num_bytes, device=device, is_pinned=copy.is_pinned)
                for copy in program.trace.copies
                if copy.is_to_device
            ),
        )
        found.append(times)
    return tuple(found)


MULTI_GPU_TABLE_VERSION = 1


class Strategy(StrEnum):
    """The way in which several devices share a step, each with its part of the batch.

    ``data_parallel`` is ``nn.DataParallel``: one process, which copies the model to all devices in
    each step. ``ddp`` is ``nn.parallel.DistributedDataParallel``: a process per device, which
    exchange gradients.
    """

    DATA_PARALLEL = "data_parallel"
    DDP = "ddp"


class MultiGpuSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one machine that share a step.

    Args:
        strategy: Way of sharing.
        num_devices: Number of devices, at least 2.
        has_peer_access: Whether they may access each other's memory directly; None for the usual
            setting of such boards. False also if it was switched off (``NCCL_P2P_DISABLE``).
        has_bridge: Whether cards are bridged in pairs.
    """

    strategy: Strategy
    num_devices: int
    has_peer_access: bool | None = None
    has_bridge: bool = False


class DataParallelCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Additional costs of ``nn.DataParallel``. Host times in dispatches (``HostSpec.op_ns``).

    Args:
        step_dispatches: Each call of the model: threads, scatter and gather.
        replica_dispatches: Each replica.
        tensor_dispatches: Each parameter and buffer, packed for the broadcast.
        replica_tensor_dispatches: The same on each device: unpacked, and set on its module.
        issue_fraction: Extra issue time of the forward pass per further replica, as a fraction.
            The replicas issue in threads under one interpreter lock: 1 means one after another,
            more includes the cost of switching.
        slowest_fraction: Extra time of the slowest device over a lone one, as a fraction.
    """

    step_dispatches: float
    replica_dispatches: float
    tensor_dispatches: float
    replica_tensor_dispatches: float
    issue_fraction: float
    slowest_fraction: float


class DdpCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Additional costs of ``DistributedDataParallel``.

    Args:
        exposed_fraction: Extra time of the backward pass during its all-reduce, in multiples of
            the all-reduce's time alone: the last bucket, and the slowdown of the kernels.
        local_ns_per_byte: Per byte of gradients, for any devices: packing, unpacking and waiting
            for each other.
    """

    exposed_fraction: float
    local_ns_per_byte: float


class HeldOutFactor(msgspec.Struct, frozen=True, kw_only=True):
    """Error of the factor from one device to several, on rows that were not in the fit.

    Args:
        strategy: Way in which the devices share the step.
        left_out: Kind of group left out in turn: ``family`` (of models) or ``device``.
        num_groups: Number of groups.
        num_rows: Rows predicted.
        median_error_fraction: Median of |predicted / measured - 1|.
        p90_error_fraction: 90th percentile of the same.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    strategy: Strategy
    left_out: str
    num_groups: int
    num_rows: int
    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float


class MultiGpuTable(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of several devices.

    Args:
        version: Version of this format.
        provenance: Origin of the figures.
        data_parallel: Costs of ``nn.DataParallel``.
        ddp: Costs of ``DistributedDataParallel``.
        held_out: Errors of the factor; the largest of a strategy widens its intervals.
        calibrated_on: Fingerprints of the steps on several devices in the fit.
    """

    version: int
    provenance: str
    data_parallel: DataParallelCosts
    ddp: DdpCosts
    held_out: tuple[HeldOutFactor, ...]
    calibrated_on: tuple[str, ...] = ()

    def log_sigma(self, strategy: Strategy) -> float:
        """Return the standard deviation of the logarithm of a strategy's factor."""
        return max(error.log_sigma for error in self.held_out if error.strategy is strategy)


@cache
def load_multi_gpu_table() -> MultiGpuTable:
    """Return the table that ships with the package."""
    package, name = "breakeven.simulate", "multi_gpu.json"
    return read_shipped(package, name, MultiGpuTable, MULTI_GPU_TABLE_VERSION)


_STRATEGIES = (
    (
        re.compile(r"\bDDP\b|DistributedDataParallel|\bdistributed data parallel\b", re.I),
        Strategy.DDP,
    ),
    (re.compile(r"(?:^|[^a-z])DataParallel|\bdata parallel\b", re.I), Strategy.DATA_PARALLEL),
)
_NO_PEER_ACCESS = re.compile(r"P2P (?:disabled|off)|NCCL_P2P_DISABLE", re.I)
_BRIDGE = re.compile(r"NVLink bridge", re.I)


def strategy_of(note: str) -> Strategy | None:
    """Return the strategy that a note names; None if it names none."""
    return next((strategy for pattern, strategy in _STRATEGIES if pattern.search(note)), None)


def setup_of(note: str, num_devices: int) -> tuple[MultiGpuSetup, tuple[Caveat, ...]]:
    """Return the devices of a timing, with caveats for the assumptions.

    Args:
        note: Note on the timing: ``DDP``, ``nn.DataParallel``, and whether peer-to-peer access
            was off or cards were bridged.
        num_devices: Number of devices, at least 2.
    """
    strategy = strategy_of(note)
    caveats: tuple[Caveat, ...] = ()
    if strategy is None:
        strategy = Strategy.DDP
        caveats = (
            Caveat(
                code="assumed-strategy",
                message=f"Nothing says how the {num_devices} devices share the step; assumed DDP.",
            ),
        )
    setup = MultiGpuSetup(
        strategy=strategy,
        num_devices=num_devices,
        has_peer_access=False if _NO_PEER_ACCESS.search(note) else None,
        has_bridge=_BRIDGE.search(note) is not None,
    )
    return setup, caveats
