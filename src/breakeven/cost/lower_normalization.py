"""Normalization over layers, batches and groups.

``variant`` names what is normalised over (``layer``, ``batch``, ``group``, ``rms``), then
``backward``. Where the statistics span more than a thread block can hold, the input must be
read again once they are known: batch and group norm read it twice.

Batch norm is cuDNN's, but where it has none for the dtypes: bfloat16, and float16 with parameters
of the same dtype (``model.half()``). ``batch_native`` is torch's own.
"""

from __future__ import annotations

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    RuleTable,
    Streaming,
    base_name,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.trace import Op

RULES = RuleTable()

# FLOP per element. Forward: Welford's update (6), then subtract, scale, and weight and bias as a
# multiply-add; backward: two products and sums for the statistics, and a sum of three terms.
_FORWARD_FLOP = 10
_BACKWARD_FLOP = 11
_WEIGHT_FLOP = 5
_APPLY_FLOP = 4

# Threads of torch's own batch norm load one element at a time, so that narrow ones take as long
# as these. Training VGG with batch norm rather than without takes the same additional time in
# float16 as in float32, or more: RTX 2080 Ti 0.82-0.87 times, TITAN V 1.3, A100 1.2
# (pytorch-gpu-benchmark, batches of 12).
_NATIVE_ELEMENT_BYTES = 4


def _kind(op: Op) -> str:
    name = base_name(op.name)
    for kind in ("layer", "group", "rms"):
        if kind in name:
            return kind
    return "batch"


def _is_training(op: Op, statistic_index: int) -> bool:
    """Return whether the statistics are those of the batch, rather than running averages."""
    name = base_name(op.name)
    if "no_training" in name or "no_update" in name:
        return False
    if "with_update" in name:
        return True
    for key in ("training", "train"):
        if key in op.attributes:
            return bool(op.attributes[key])
    # In evaluation the saved mean is an empty tensor.
    return len(op.outputs) <= statistic_index or op.outputs[statistic_index].numel > 0


# One block per row, one pass, of (input, weight?, bias?).
for _norm, _names in (("layer", "native_layer_norm layer_norm"), ("rms", "_fused_rms_norm")):
    RULES.add(_names)(
        Streaming(family=Family.NORMALIZATION, flop_per_input=_FORWARD_FLOP, variant=_norm)
    )


@RULES.add("native_layer_norm_backward _fused_rms_norm_backward")
def _lower_layer_norm_backward(op: Op) -> tuple[Kernel, ...]:
    """Lower ``native_layer_norm_backward(grad_out, input, mean, rstd, weight?, bias?)``.

    The gradients of weight and bias are sums over all rows, a kernel of their own that reads
    gradient and input again. Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """
    grad, source = op.inputs[0], op.inputs[1]
    parameters = [spec for spec in op.outputs if spec.shape != source.shape]
    # A layer norm over all dimensions has parameters as large as its input.
    has_input_gradient = any(spec.shape == source.shape for spec in op.outputs)
    variant = f"{_kind(op)}_backward"
    kernels: list[Kernel] = []
    if has_input_gradient:
        kernels.append(
            streaming_kernel(
                op,
                family=Family.NORMALIZATION,
                flop=_BACKWARD_FLOP * source.numel,
                write_bytes=tensor_bytes(source),
                variant=variant,
            )
        )
    if parameters:
        kernels.append(
            streaming_kernel(
                op,
                family=Family.NORMALIZATION,
                flop=_WEIGHT_FLOP * source.numel,
                read_bytes=tensor_bytes(grad) + tensor_bytes(source),
                write_bytes=total_bytes(parameters),
                variant=variant,
            )
        )
    return tuple(kernels)


def _is_native(op: Op) -> bool:
    """Return whether torch's own kernels normalize the batch.

    The weight is the first input of one dimension; without one, the running mean has its dtype.
    """
    dtype = op.inputs[0].dtype
    weight = next((spec for spec in op.inputs if len(spec.shape) == 1), op.inputs[0])
    return dtype == "bfloat16" or (dtype == "float16" and weight.dtype == dtype)


def _batch_kernel(op: Op, *, flop: int, num_sources: int, variant: str) -> Kernel:
    """Return a batch norm that reads its first ``num_sources`` inputs twice."""
    scale = 1.0
    if _is_native(op):
        scale = max(1.0, _NATIVE_ELEMENT_BYTES / op.inputs[0].element_bytes)
        variant = variant.replace("batch", "batch_native")
    return streaming_kernel(
        op,
        family=Family.NORMALIZATION,
        flop=flop * op.inputs[0].numel,
        read_bytes=scale * (total_bytes(op.inputs) + total_bytes(op.inputs[:num_sources])),
        write_bytes=scale * total_bytes(op.outputs),
        num_blocks=op.inputs[0].shape[1],
        variant=variant,
    )


@RULES.add(
    """
    native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update
    """
)
def _lower_batch_norm(op: Op) -> Kernel:
    """Lower the batch norms, all of (input, weight?, bias?, running statistics).

    cuDNN takes one launch in training; in evaluation it is an elementwise kernel.
    """
    source = op.inputs[0]
    if not _is_training(op, statistic_index=1):
        return streaming_kernel(op, flop=_APPLY_FLOP * source.numel, variant="batch_norm")
    return _batch_kernel(op, flop=_FORWARD_FLOP, num_sources=1, variant="batch")


@RULES.add(
    """
    native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward
    batch_norm_backward
    """
)
def _lower_batch_norm_backward(op: Op) -> Kernel:
    """Lower the gradients of batch norm: sums per channel, then the gradient of the input.

    The two inputs of the shape of the data are gradient and input, in either order.
    """
    flop = _BACKWARD_FLOP + _WEIGHT_FLOP
    return _batch_kernel(op, flop=flop, num_sources=2, variant="batch_backward")


# Moments, coefficients per channel, application; backward: sums per channel, coefficients, input,
# parameters. Source: aten/src/ATen/native/cuda/group_norm_kernel.cu.
RULES.add("native_group_norm")(
    Streaming(
        family=Family.NORMALIZATION,
        flop_per_input=_FORWARD_FLOP,
        num_read_twice=1,
        launches=3,
        variant="group",
    )
)
RULES.add("native_group_norm_backward")(
    Streaming(
        family=Family.NORMALIZATION,
        flop_per_input=_BACKWARD_FLOP + _WEIGHT_FLOP,
        num_read_twice=2,
        launches=4,
        variant="group_backward",
    )
)


# One half of a synchronised batch norm: sums per channel, or their application.
RULES.add(
    """
    batch_norm_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_elemt
    batch_norm_backward_reduce batch_norm_backward_elemt batch_norm_update_stats
    """
)(Streaming(family=Family.NORMALIZATION, flop_per_input=_WEIGHT_FLOP, variant="batch"))


# Of (v, g): the norm per row, then scale it.
RULES.add("_weight_norm_interface _weight_norm_interface_backward")(
    Streaming(family=Family.NORMALIZATION, flop_per_input=3, variant="weight")
)
