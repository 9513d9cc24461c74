"""Reductions, scans, softmax, losses, and pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
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

# Rows up to here are held in the registers of a warp. Longer ones a block reads from shared memory
# or again from the cache; a softmax over another dimension than the last passes over its input
# three times. Source: aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
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
    name = base_name(op.name)
    numel = sum(spec.numel for spec in op.inputs)
    variant = "scan" if name in _SCANS else "outer" if _keeps_last_dimension(op) else ""
    flop = _REDUCTION_FLOP[name] * numel
    return reduction_kernel(op, flop=flop, variant=variant)


def _keeps_last_dimension(op: Op) -> bool:
    """Return whether columns are reduced, as for the gradient of a bias."""
    reduced = reduced_dimensions(op)
    return bool(reduced) and len(op.inputs[0].shape) - 1 not in reduced


def reduced_dimensions(op: Op) -> set[int]:
    """Return the dimensions that a reduction is given: none where it is given none, for all."""
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
    small = streaming_kernel(
        op,
        flop=5 * output_numel(op),
        read_bytes=5 * reduced_bytes,
        write_bytes=5 * reduced_bytes,
        launches=5,
    )
    return reduction, elementwise, reduction, small


@RULES.add("_softmax _log_softmax _safe_softmax _masked_softmax softmax log_softmax")
def _lower_softmax(op: Op) -> Kernel:
    source = op.inputs[0]
    kernel = streaming_kernel(
        op, family=Family.SOFTMAX, flop=_SOFTMAX_FLOP * source.numel, variant=_softmax_variant(op)
    )
    if kernel.variant == "spatial":
        read_bytes = kernel.read_bytes + 2 * tensor_bytes(source)
        return msgspec.structs.replace(kernel, read_bytes=read_bytes)
    return kernel


def _softmax_variant(op: Op) -> str:
    """Return ``persistent`` for short rows, ``spatial`` across rows, empty for long rows."""
    source = op.inputs[0]
    if not source.shape:
        return "persistent"
    dim = int(op.attributes.get("dim", -1)) % len(source.shape)
    if math.prod(source.shape[dim + 1 :]) > 1:
        return "spatial"
    length = source.shape[dim]
    is_short = length <= _PERSISTENT_ROW and length * source.element_bytes <= _PERSISTENT_ROW_BYTES
    return "persistent" if is_short else ""


@RULES.add("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward")
def _lower_softmax_backward(op: Op) -> Kernel:
    """Lower ``_softmax_backward_data(grad_output, output)`` and its logarithm's.

    The plain one multiplies both first, into a tensor of its own, and reduces that.
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
    """Return the reduction of a loss over all elements; none where each keeps its own."""
    if output_numel(op) == source.numel and op.outputs and op.outputs[0].shape == source.shape:
        return ()
    reduction = reduction_kernel(op, flop=source.numel, read_bytes=tensor_bytes(source))
    return (reduction,)


@RULES.add(_POINTWISE_LOSS_FLOP)
def _lower_pointwise_loss(op: Op) -> tuple[Kernel, ...]:
    """Lower ``mse_loss(self, target)`` and its like: all differences, then their mean or sum."""
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

    Composed of four elementwise kernels, one more per weight, and the reduction.
    Source: aten/src/ATen/native/Loss.cpp, binary_cross_entropy_with_logits.
    """
    source = op.inputs[0]
    one_bytes = tensor_bytes(source)
    num_kernels = 4 + len(op.inputs) - 2
    elementwise = streaming_kernel(
        op,
        flop=(2 * TRANSCENDENTAL_FLOP + num_kernels) * source.numel,
        # Two of the four read one operand, two of them two.
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
    return (
        fill_kernel(op),
        scatter_kernel(
            op, flop=target.numel, read_bytes=tensor_bytes(target), write_bytes=value_bytes
        ),
    )


@RULES.add(
    """
    multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
    multilabel_margin_loss_backward soft_margin_loss soft_margin_loss_backward
    """
)
def _lower_margin_loss(op: Op) -> Kernel:
    flop = 4 * sum(spec.numel for spec in op.inputs)
    return reduction_kernel(op, flop=flop)


@RULES.add("_ctc_loss _ctc_loss_backward _cudnn_ctc_loss")
def _lower_ctc(op: Op) -> Kernels:
    """Lower ``_ctc_loss(log_probs (T, N, C), targets, …)``: a recursion over the T frames.

    Each frame updates 2 S + 1 states per sequence, of three terms each. The gradient runs the
    recursion again from the end, and then fills the gradient of all frames.
    """
    is_backward = "backward" in op.name
    # The gradient comes first in the arguments of the backward operator.
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


def _num_dimensions(op: Op) -> int:
    """Return over how many trailing dimensions ``avg_pool2d`` and its like pool."""
    name = base_name(op.name)
    return next(count for count in (1, 2, 3) if f"{count}d" in name)


def _window(op: Op, large: TensorSpec, small: TensorSpec) -> int:
    """Return how many elements one window covers, from its size or from that of the tensors."""
    dimensions = _num_dimensions(op)
    given: Sequence[int] | int | None = op.attributes.get("kernel_size")
    if isinstance(given, int):
        return given**dimensions
    if given:
        # A single number stands for all dimensions.
        return math.prod(given) if len(given) == dimensions else given[0] ** dimensions
    return math.prod(
        math.ceil(whole / max(1, part))
        for whole, part in zip(large.shape[-dimensions:], small.shape[-dimensions:], strict=True)
    )


@RULES.add((*_AVERAGE, *_MAXIMUM, "max_unpool2d", "max_unpool3d"))
def _lower_pool(op: Op) -> Kernel:
    source, result = op.inputs[0], op.outputs[0]
    flop = result.numel * _window(op, source, result)
    return streaming_kernel(op, family=Family.POOLING, flop=flop)


@RULES.add(f"{name}_backward" for name in _AVERAGE)
def _lower_average_backward(op: Op) -> Kernel:
    """Lower ``avg_pool2d_backward(grad_output, input)``; of the input only the shape is used."""
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
