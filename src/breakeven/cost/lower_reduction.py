"""Reductions, scans, softmax, losses, pooling over windows, and normalization.

The ``variant`` of a normalization names the normalised dimensions (``layer``, ``batch``, ``group``,
``rms``), then ``backward``. If the statistics span more than a thread block can hold, the kernel
reads the input again once they are known: batch and group norm read it twice.

cuDNN computes batch norm except for dtypes without a cuDNN kernel: bfloat16, and float16 with
parameters of the same dtype (``model.half()``). ``batch_native`` is torch's own kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
    Streaming,
    base_name,
    fill_kernel,
    output_numel,
    reduction_kernel,
    scatter_kernel,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.trace import Op, TensorSpec

RULES = RuleTable()

# FLOP per input element. Variances use Welford's update: subtract, divide, two multiply-adds.
_REDUCTION_FLOP = {
    **dict.fromkeys(
        ("sum", "mean", "nansum", "prod", "max", "min", "argmax", "argmin", "amax", "amin",
         "aminmax", "_aminmax", "all", "any", "_is_all_true", "_is_any_true", "count_nonzero",
         "equal", "trace", "cumsum", "cumprod", "cummax", "cummin", "_cummax_helper",
         "_cummin_helper", "hash_tensor", "segment_reduce", "_segment_reduce_backward"),
        1,
    ),
    **dict.fromkeys(
        ("norm", "native_norm", "linalg_vector_norm", "linalg__powsum", "dist", "renorm"), 2
    ),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), 6),
    **dict.fromkeys(("logcumsumexp", "_logcumsumexp"), 2 * TRANSCENDENTAL_FLOP),
}  # fmt: skip

_SCANS = frozenset(
    ("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "_cummin_helper", "logcumsumexp",
     "_logcumsumexp")
)  # fmt: skip

# FLOP per element of the softmax along rows. Forward: maximum, subtract, exponential, add, divide;
# backward: multiply, add, multiply, subtract.
_SOFTMAX_FLOP = TRANSCENDENTAL_FLOP + 4
_SOFTMAX_BACKWARD_FLOP = 4

# Rows up to this length stay in the registers of a warp. A block reads longer ones from shared
# memory or again from the cache; a softmax over another dimension than the last passes over its
# input three times. Source: aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
_PERSISTENT_ROW = 1024
_PERSISTENT_ROW_BYTES = 4096

# FLOP per element of a pointwise loss.
_POINTWISE_LOSS_FLOP = {
    "mse_loss": 2,
    "smooth_l1_loss": 4,
    "huber_loss": 4,
    "binary_cross_entropy": 2 * TRANSCENDENTAL_FLOP,
}


@RULES.add(_REDUCTION_FLOP)
def _lower_reduction(op: Op) -> Kernel:
    name, reduced = base_name(op.name), reduced_dimensions(op)
    # The reduction is along columns, as for the gradient of a bias.
    is_outer = bool(reduced) and len(op.inputs[0].shape) - 1 not in reduced
    variant = "scan" if name in _SCANS else "outer" if is_outer else ""
    flop = _REDUCTION_FLOP[name] * sum(spec.numel for spec in op.inputs)
    return reduction_kernel(op, flop=flop, variant=variant)


def reduced_dimensions(op: Op) -> set[int]:
    """Return the dimensions argument of a reduction; empty for a reduction over all dimensions."""
    given: Sequence[int] | int | None = op.attributes.get("dim")
    if given is None or not op.inputs or not op.inputs[0].shape:
        return set()
    num_dimensions = len(op.inputs[0].shape)
    return {dim % num_dimensions for dim in ((given,) if isinstance(given, int) else given)}


@RULES.add("logsumexp")
def _lower_logsumexp(op: Op) -> tuple[Kernel, ...]:
    """Lower ``logsumexp``, which torch composes: maximum, subtract, exponential, sum, logarithm.

    Source: aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl.
    """
    numel = op.inputs[0].numel
    full_bytes, reduced_bytes = tensor_bytes(op.inputs[0]), total_bytes(op.outputs)
    reduction = reduction_kernel(op, flop=numel)
    elementwise = streaming_kernel(
        op,
        flop=(TRANSCENDENTAL_FLOP + 1) * numel,
        read_bytes=2 * full_bytes + reduced_bytes,
        write_bytes=2 * full_bytes,
        launches=2,
    )
    flop, small_bytes = 5 * output_numel(op), 5 * reduced_bytes
    small = streaming_kernel(
        op, flop=flop, read_bytes=small_bytes, write_bytes=small_bytes, launches=5
    )
    return reduction, elementwise, reduction, small


@RULES.add("_softmax _log_softmax _safe_softmax _masked_softmax softmax log_softmax")
def _lower_softmax(op: Op) -> Kernel:
    """Lower a softmax: ``persistent`` for short rows, ``spatial`` across rows."""
    source, variant, rereads = op.inputs[0], "", 0
    shape = source.shape or (1,)
    dim = int(op.attributes.get("dim", -1)) % len(shape)
    length = shape[dim]
    if math.prod(shape[dim + 1 :]) > 1:
        variant, rereads = "spatial", 2
    elif length <= _PERSISTENT_ROW and length * source.element_bytes <= _PERSISTENT_ROW_BYTES:
        variant = "persistent"
    return streaming_kernel(
        op,
        family=Family.SOFTMAX,
        flop=_SOFTMAX_FLOP * source.numel,
        read_bytes=total_bytes(op.inputs) + rereads * tensor_bytes(source),
        variant=variant,
    )


@RULES.add("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward")
def _lower_softmax_backward(op: Op) -> Kernel:
    """Lower ``_softmax_backward_data(grad_output, output)`` and that of the logarithm.

    The plain one first multiplies both into a temporary tensor and reduces that.
    Source: aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out.
    """
    grad, output = op.inputs[:2]
    is_logarithm = "log" in base_name(op.name)
    per_element = _SOFTMAX_BACKWARD_FLOP + (TRANSCENDENTAL_FLOP if is_logarithm else 0)
    product_bytes = 0.0 if is_logarithm else tensor_bytes(output)
    return streaming_kernel(
        op,
        family=Family.SOFTMAX,
        flop=per_element * grad.numel,
        read_bytes=total_bytes(op.inputs) + 2 * product_bytes,
        write_bytes=total_bytes(op.outputs) + product_bytes,
        launches=1 if is_logarithm else 2,
        variant="backward",
    )


def _reduced(op: Op, source: TensorSpec) -> tuple[Kernel, ...]:
    """Return the reduction of a loss over all elements; none for an unreduced loss."""
    if output_numel(op) == source.numel and op.outputs and op.outputs[0].shape == source.shape:
        return ()
    reduction = reduction_kernel(op, flop=source.numel, read_bytes=tensor_bytes(source))
    return (reduction,)


@RULES.add(_POINTWISE_LOSS_FLOP)
def _lower_pointwise_loss(op: Op) -> tuple[Kernel, ...]:
    """Lower ``mse_loss(self, target)`` and similar: all differences, then their mean or sum."""
    source = op.inputs[0]
    flop = _POINTWISE_LOSS_FLOP[base_name(op.name)] * source.numel
    differences = streaming_kernel(op, flop=flop, write_bytes=tensor_bytes(source))
    return differences, *_reduced(op, source)


@RULES.add(f"{name}_backward" for name in _POINTWISE_LOSS_FLOP)
def _lower_loss_backward(op: Op) -> Kernel:
    """Lower the gradient of a pointwise loss: one elementwise kernel."""
    return streaming_kernel(op, flop=4 * output_numel(op))


@RULES.add("binary_cross_entropy_with_logits")
def _lower_bce_with_logits(op: Op) -> tuple[Kernel, ...]:
    """Lower ``binary_cross_entropy_with_logits(self, target, weight?, pos_weight?)``.

    It is composed of four elementwise kernels, one more per weight, and the reduction.
    Source: aten/src/ATen/native/Loss.cpp, binary_cross_entropy_with_logits.
    """
    source = op.inputs[0]
    one_bytes = tensor_bytes(source)
    num_kernels = 4 + len(op.inputs) - 2
    elementwise = streaming_kernel(
        op,
        flop=(2 * TRANSCENDENTAL_FLOP + num_kernels) * source.numel,
        # Two of the four read one operand, the other two read two.
        read_bytes=(2 * num_kernels - 2) * one_bytes,
        write_bytes=num_kernels * one_bytes,
        launches=num_kernels,
    )
    return elementwise, *_reduced(op, source)


@RULES.add("nll_loss_forward nll_loss2d_forward")
def _lower_nll(op: Op) -> Kernel:
    """Lower ``nll_loss_forward(self (N, C, …), target (N, …))``: reads one score per target."""
    scores, target = op.inputs[0], op.inputs[1]
    picked_bytes = float(target.numel * scores.element_bytes)
    return reduction_kernel(
        op,
        flop=2 * target.numel,
        read_bytes=tensor_bytes(target) + picked_bytes,
        # Per-image losses are summed block by block, then once more.
        launches=2 if "2d" in op.name else 1,
    )


@RULES.add("nll_loss_backward nll_loss2d_backward")
def _lower_nll_backward(op: Op) -> tuple[Kernel, ...]:
    """Lower ``nll_loss_backward(grad_output, self, target)``: zero, then one value per target."""
    target = op.inputs[2]
    value_bytes = float(target.numel * op.inputs[1].element_bytes)
    return fill_kernel(op), scatter_kernel(
        op, flop=target.numel, read_bytes=tensor_bytes(target), write_bytes=value_bytes
    )


@RULES.add(
    """
    multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
    multilabel_margin_loss_backward soft_margin_loss soft_margin_loss_backward
    """
)
def _lower_margin_loss(op: Op) -> Kernel:
    return reduction_kernel(op, flop=4 * sum(spec.numel for spec in op.inputs))


@RULES.add("_ctc_loss _ctc_loss_backward _cudnn_ctc_loss")
def _lower_ctc(op: Op) -> Kernels:
    """Lower ``_ctc_loss(log_probs (T, N, C), targets, …)``: a recursion over the T frames.

    Each frame updates 2 S + 1 states per sequence, of three terms each. The gradient runs the
    recursion again from the end, then fills the gradient of all frames.
    """
    is_backward = "backward" in op.name
    # The gradient is the first argument of the backward operator.
    log_probs, targets = op.inputs[1:3] if is_backward else op.inputs[:2]
    num_frames = log_probs.shape[0]
    num_states = 2 * targets.numel + 1
    recursion = reduction_kernel(
        op, flop=num_frames * num_states * 3 * TRANSCENDENTAL_FLOP, variant="ctc"
    )
    if not is_backward:
        return recursion
    return recursion, streaming_kernel(op, flop=TRANSCENDENTAL_FLOP * log_probs.numel, launches=2)


_MAXIMUM = (
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d",
)  # fmt: skip

_AVERAGE = (
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
)  # fmt: skip


def _window(op: Op, large: TensorSpec, small: TensorSpec) -> int:
    """Return the number of elements in a window, from its size or from the tensors' sizes."""
    dimensions = next(count for count in (1, 2, 3) if f"{count}d" in op.name)
    given: Sequence[int] | int | None = op.attributes.get("kernel_size")
    if isinstance(given, int):
        return given**dimensions
    if given:
        # A single number applies to all dimensions.
        return math.prod(given) if len(given) == dimensions else given[0] ** dimensions
    sizes = zip(large.shape[-dimensions:], small.shape[-dimensions:], strict=True)
    return math.prod(math.ceil(whole / max(1, part)) for whole, part in sizes)


@RULES.add((*_AVERAGE, *_MAXIMUM, "max_unpool2d", "max_unpool3d"))
def _lower_pool(op: Op) -> Kernel:
    source, result = op.inputs[0], op.outputs[0]
    flop = result.numel * _window(op, source, result)
    return streaming_kernel(op, family=Family.POOLING, flop=flop)


@RULES.add(f"{name}_backward" for name in _AVERAGE)
def _lower_average_backward(op: Op) -> Kernel:
    """Lower ``avg_pool2d_backward(grad_output, input)``, which uses only the input's shape."""
    grad, result = op.inputs[0], op.outputs[0]
    return streaming_kernel(
        op,
        family=Family.POOLING,
        flop=grad.numel * _window(op, result, grad),
        read_bytes=float(grad.num_bytes),
        variant="backward",
    )


@RULES.add(f"{name}_backward" for name in _MAXIMUM)
def _lower_max_backward(op: Op) -> Kernel:
    """Lower ``max_pool2d_with_indices_backward(grad_output, input, indices)``.

    The gradient goes to one element of each window; the input is not read.
    """
    grad, indices = op.inputs[0], op.inputs[-1]
    return streaming_kernel(
        op,
        family=Family.POOLING,
        flop=grad.numel,
        read_bytes=float(grad.num_bytes + indices.num_bytes),
        variant="backward",
    )


# FLOP per element. Forward: Welford's update (6), then subtract, scale, and weight and bias as a
# multiply-add; backward: two products and sums for the statistics, and a sum of three terms.
_FORWARD_FLOP = 10
_BACKWARD_FLOP = 11
_WEIGHT_FLOP = 5
_APPLY_FLOP = 4

# Threads of torch's own batch norm load one element at a time, so narrower elements take as long
# as these. Batch norm adds as much time to the training of VGG in float16 as in float32, or
# more: RTX 2080 Ti 0.82-0.87 times, TITAN V 1.3, A100 1.2 (pytorch-gpu-benchmark, batches of 12).
_NATIVE_ELEMENT_BYTES = 4


def _is_training(op: Op) -> bool:
    """Return whether the statistics are the batch's, rather than running averages."""
    name = base_name(op.name)
    if "no_training" in name or "no_update" in name:
        return False
    if "with_update" in name:
        return True
    for key in ("training", "train"):
        if key in op.attributes:
            return bool(op.attributes[key])
    # In evaluation the saved mean is an empty tensor.
    return len(op.outputs) < 2 or op.outputs[1].numel > 0


# One block per row, one pass, of (input, weight?, bias?).
for _norm, _names in (("layer", "native_layer_norm layer_norm"), ("rms", "_fused_rms_norm")):
    RULES.add(_names)(
        Streaming(family=Family.NORMALIZATION, flop_per_input=_FORWARD_FLOP, variant=_norm)
    )


@RULES.add("native_layer_norm_backward _fused_rms_norm_backward")
def _lower_layer_norm_backward(op: Op) -> tuple[Kernel, ...]:
    """Lower ``native_layer_norm_backward(grad_out, input, mean, rstd, weight?, bias?)``.

    A separate kernel sums the gradients of weight and bias over all rows, and reads gradient and
    input again. Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """
    grad, source = op.inputs[0], op.inputs[1]
    kernel = partial(
        streaming_kernel,
        op,
        family=Family.NORMALIZATION,
        variant="layer_backward" if "layer" in op.name else "rms_backward",
    )
    kernels: list[Kernel] = []
    # A layer norm over all dimensions has parameters as large as its input.
    if any(spec.shape == source.shape for spec in op.outputs):
        write_bytes = tensor_bytes(source)
        kernels.append(kernel(flop=_BACKWARD_FLOP * source.numel, write_bytes=write_bytes))
    if parameters := [spec for spec in op.outputs if spec.shape != source.shape]:
        kernels.append(
            kernel(
                flop=_WEIGHT_FLOP * source.numel,
                read_bytes=tensor_bytes(grad) + tensor_bytes(source),
                write_bytes=total_bytes(parameters),
            )
        )
    return tuple(kernels)


def _batch_kernel(op: Op, *, flop: int, num_sources: int, variant: str) -> Kernel:
    """Return a batch norm that reads its first ``num_sources`` inputs twice."""
    scale, source = 1.0, op.inputs[0]
    # The weight is the first input of one dimension. Without a weight, the running mean has its
    # dtype.
    weight = next((spec for spec in op.inputs if len(spec.shape) == 1), source)
    # For these dtypes torch's own kernels normalize the batch.
    if source.dtype == "bfloat16" or weight.dtype == source.dtype == "float16":
        scale = max(1.0, _NATIVE_ELEMENT_BYTES / source.element_bytes)
        variant = variant.replace("batch", "batch_native")
    return streaming_kernel(
        op,
        family=Family.NORMALIZATION,
        flop=flop * source.numel,
        read_bytes=scale * (total_bytes(op.inputs) + total_bytes(op.inputs[:num_sources])),
        write_bytes=scale * total_bytes(op.outputs),
        num_blocks=source.shape[1],
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

    cuDNN takes one launch in training; evaluation is an elementwise kernel.
    """
    source = op.inputs[0]
    if not _is_training(op):
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

    The two inputs with the shape of the data are gradient and input, in either order.
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


# Inputs (v, g): compute the norm per row, then scale it.
RULES.add("_weight_norm_interface _weight_norm_interface_backward")(
    Streaming(family=Family.NORMALIZATION, flop_per_input=3, variant="weight")
)
