"""How large a model is and what its phases take: what several devices share and exchange."""

from __future__ import annotations

import msgspec

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.program import Program
from breakeven.trace import Copy, Op, Phase, StepTrace, TensorSpec

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that a model owns.

    Args:
        parameter_bytes: All parameters, in the dtype in which the model keeps them.
        num_parameter_tensors: How many tensors these are.
        gradient_bytes: What is exchanged after a backward pass; 0 where there is none.
        buffer_bytes: Buffers, such as running statistics.
        num_buffer_tensors: How many tensors these are.
    """

    parameter_bytes: float
    num_parameter_tensors: int
    gradient_bytes: float
    buffer_bytes: float = 0.0
    num_buffer_tensors: int = 0


def model_size(trace: StepTrace) -> ModelSize:
    """Return the size of the model that ``trace`` runs.

    A parameter is a tensor of floats that a forward pass reads and nothing in it has made; the
    running statistics of a batch norm, and integers, are buffers. By that a batch that the step
    does not copy cannot be told from them, so it counts as a tensor too many; parameters are as
    large together as the trace says.
    """
    made = {copy.storage for copy in trace.copies if copy.storage >= 0}
    owned: dict[int, TensorSpec] = {}
    buffers: dict[int, TensorSpec] = {}
    num_counters = 0
    for op in trace.ops:
        if op.phase is not Phase.FORWARD or op.is_on_host or is_zeroing(op):
            continue
        statistics = {id(tensor) for tensor in _running_statistics(op)}
        num_counters += bool(statistics)
        for tensor in op.inputs:
            if tensor.storage in made or not tensor.shape:
                continue
            is_buffer = id(tensor) in statistics or tensor.dtype not in _FLOATS
            (buffers if is_buffer else owned).setdefault(tensor.storage, tensor)
        made.update(tensor.storage for tensor in op.outputs if tensor.storage not in owned)
    element_bytes = _main_element_bytes(owned)
    parameter_bytes = float(trace.num_parameters * element_bytes)
    has_backward = any(op.phase is Phase.BACKWARD for op in trace.ops)
    return ModelSize(
        parameter_bytes=parameter_bytes,
        num_parameter_tensors=len(owned),
        gradient_bytes=parameter_bytes if has_backward else 0.0,
        buffer_bytes=float(sum(tensor.num_bytes for tensor in buffers.values())),
        # Batch norms count their steps beside mean and variance; in evaluation they do not read it.
        num_buffer_tensors=len(buffers) + num_counters,
    )


def is_zeroing(op: Op) -> bool:
    """Return whether ``op`` sets gradients to zero: once per step, whatever the replicas."""
    return op.phase is Phase.FORWARD and op.name.startswith(("aten.zero_.", "aten._foreach_zero_."))


def _running_statistics(op: Op) -> tuple[TensorSpec, ...]:
    # (input, weight, bias, running mean, running variance) of every variant that keeps them.
    return op.inputs[3:5] if "batch_norm" in op.name else ()


def _main_element_bytes(owned: dict[int, TensorSpec]) -> int:
    sizes: dict[int, int] = {}
    for tensor in owned.values():
        sizes[tensor.element_bytes] = sizes.get(tensor.element_bytes, 0) + tensor.num_bytes
    return max(sizes, key=sizes.__getitem__, default=0)


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
