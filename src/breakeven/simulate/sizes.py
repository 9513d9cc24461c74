"""How large a model is: what several devices have to exchange in each step."""

from __future__ import annotations

import msgspec

from breakeven.trace import Op, Phase, StepTrace, TensorSpec

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
