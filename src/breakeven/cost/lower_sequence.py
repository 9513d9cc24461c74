"""Layers over sequences: scaled dot-product attention, and recurrent layers.

Attention: query (B, H, S_q, D), key (B, H_kv, S_k, D), value (B, H_kv, S_k, D_v). A block of the
kernel processes some queries against all keys, so its m, n, k and batch are those of its second
product: S_q, D_v, S_k and B × H. Backward, a block processes some keys against all queries, with
S_k and S_q exchanged. ``variant`` names the implementations that torch may choose, see
`breakeven.cost.implementations`.

Recurrent layers: T time steps, B sequences, H hidden units, G gates (LSTM 4, GRU 3, plain 1), I
inputs. The products with the input do not wait for the time step before, so they are one GEMM per
layer and direction. The products with the hidden state wait for it: they are a RECURRENT kernel.
Its m = B, n = G × H and k = H are the sizes of one step, and ``launches`` is the number of
sequential steps of all layers and directions; its FLOP and bytes are those of all of them. In small
layers one launch takes all steps, see `breakeven.cost.implementations`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.cost.implementations import BACKWARD, BLOCK, in_one_kernel
from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
    base_name,
    reduction_kernel,
    streaming_kernel,
    tensor_bytes,
    tensor_core_precision,
    total_bytes,
)
from breakeven.device import Precision
from breakeven.trace import Op, Settings, TensorSpec

RULES = RuleTable()

_FUSED = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)

# The backward pass computes five products, the forward pass two: it recomputes the scores and
# computes the gradients of scores, query, key and value.
# Source: Dao, "FlashAttention-2", 2023, section 3.1.
_BACKWARD_PRODUCTS = 2.5

# All blocks of keys add to the gradient of the query, in fp32.
_ACCUMULATOR_BYTES = 4


def _variant(op: Op) -> str:
    """Return the implementations that a GPU may run, the preferred one first.

    A trace of the CPU's flash attention stands for the GPU's if the dtype has 16 bits, which are
    all that the GPU's flash takes; otherwise for the memory-efficient kernel.
    """
    recorded = op.attributes.get("implementations")
    if recorded:
        return str(recorded)
    name = base_name(op.name)
    if "efficient" in name:
        return "efficient"
    if "cudnn" in name:
        return "cudnn"
    return "flash" if op.inputs[-1].element_bytes == 2 else "efficient"


def _product_flop(op: Op, query: TensorSpec, key: TensorSpec, value: TensorSpec) -> float:
    """Return the FLOP of the two products.

    With a causal mask, blocks above the diagonal are skipped, and those on it computed in full.
    """
    *leading, num_queries, width = query.shape
    num_keys, value_width = key.shape[-2], value.shape[-1]
    num_scores = float(math.prod(leading) * num_queries * num_keys)
    if op.attributes.get("is_causal", False):
        num_scores *= min(1.0, (num_keys + BLOCK) / (2 * num_keys))
    return 2.0 * num_scores * (width + value_width)


@RULES.add((*_FUSED, *(f"{name}_backward" for name in _FUSED)))
def _lower_attention(op: Op) -> tuple[Kernel, ...]:
    """Lower fused attention: one kernel forward; backward also one before and one after it.

    Before: the row sums of gradient times output, and zeros for the query's gradient. After: its
    conversion from fp32.
    """
    is_backward = "backward" in op.name
    # The gradient of the output is the first argument of the backward operator.
    query, key, value = op.inputs[1:4] if is_backward else op.inputs[:3]
    flop = _product_flop(op, query, key, value)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    variant = _variant(op)
    main = Kernel(
        family=Family.ATTENTION,
        flop=flop * (_BACKWARD_PRODUCTS if is_backward else 1.0),
        read_bytes=total_bytes(op.inputs),
        write_bytes=total_bytes(op.outputs),
        # The fused kernels multiply fp32 in fp32 (or emulate it), independent of the TF32 setting.
        precision=tensor_core_precision(query, allow_tf32=False),
        m=num_keys if is_backward else num_queries,
        n=value.shape[-1],
        k=num_queries if is_backward else num_keys,
        batch=math.prod(query.shape[:-2]),
        variant=variant + BACKWARD if is_backward else variant,
    )
    if not is_backward:
        return (main,)
    result_bytes = float(query.numel * query.element_bytes)
    sum_bytes = float(query.numel * _ACCUMULATOR_BYTES)
    prepared = streaming_kernel(
        op, flop=2 * query.numel, read_bytes=2 * result_bytes, write_bytes=sum_bytes
    )
    converted = streaming_kernel(
        op, flop=query.numel, read_bytes=sum_bytes, write_bytes=result_bytes
    )
    return prepared, main, converted


@RULES.add_with_settings("_scaled_dot_product_attention_math scaled_dot_product_attention")
def _lower_plain_attention(op: Op, settings: Settings) -> Kernels:
    """Lower attention that stores all scores: scale, product, softmax, product."""
    query, key, value = op.inputs[:3]
    batch = math.prod(query.shape[:-2])
    m, n, k = query.shape[-2], key.shape[-2], query.shape[-1]
    scores_bytes = float(batch * m * n * query.element_bytes)
    precision = tensor_core_precision(query, allow_tf32=settings.allow_tf32_matmul)

    def product(columns: int, contracted: int, read_bytes: float, write_bytes: float) -> Kernel:
        flop = 2.0 * batch * m * columns * contracted
        return Kernel(
            family=Family.BATCHED_GEMM, flop=flop, read_bytes=read_bytes, write_bytes=write_bytes,
            precision=precision, m=m, n=columns, k=contracted, batch=batch,
        )  # fmt: skip

    numel, scaled_bytes = query.numel + key.numel, total_bytes((query, key))
    scale = streaming_kernel(
        op, flop=numel, read_bytes=scaled_bytes, write_bytes=scaled_bytes, launches=2
    )
    softmax = streaming_kernel(
        op,
        family=Family.SOFTMAX,
        flop=(TRANSCENDENTAL_FLOP + 4) * batch * m * n,
        read_bytes=scores_bytes,
        write_bytes=scores_bytes,
    )
    value_bytes = total_bytes((value,))
    result_bytes = float(batch * m * value.shape[-1] * query.element_bytes)
    return (
        scale,
        product(n, k, scaled_bytes, scores_bytes),
        softmax,
        product(value.shape[-1], n, scores_bytes + value_bytes, result_bytes),
    )


# By cuDNN's mode number: plain with ReLU, plain with tanh, LSTM, GRU.
_NUM_GATES = (1, 1, 4, 3)
_MODE_NAMES = ("rnn", "rnn", "lstm", "gru")
_FLOP_PER_GATE = TRANSCENDENTAL_FLOP + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Sizes of a stack of recurrent layers.

    Args:
        mode: cuDNN's mode number.
        num_steps: Time steps.
        num_sequences: Sequences.
        hidden_size: Hidden units.
        gate_width: Hidden units times gates.
        widths: Inputs of each layer.
        num_directions: 1 or 2.
        element_bytes: Bytes of a number.
        precision: Precision of the arithmetic.
        is_plain: There are no packed sequences and no projection.
    """

    mode: int
    num_steps: int
    num_sequences: int
    hidden_size: int
    gate_width: int
    widths: tuple[int, ...]
    num_directions: int
    element_bytes: int
    precision: Precision
    is_plain: bool

    def gemm(self, m: int, n: int, k: int) -> Kernel:
        """Return a product for all time steps of a layer in one direction."""
        return Kernel(
            family=Family.GEMM,
            flop=2.0 * m * n * k,
            read_bytes=float((m * k + k * n) * self.element_bytes),
            write_bytes=float(m * n * self.element_bytes),
            precision=self.precision,
            m=m,
            n=n,
            k=k,
        )


def _sequence_sizes(op: Op, source: TensorSpec, states: int) -> tuple[int, int]:
    """Return (T, B) of an input of shape (T, B, I), (B, T, I), or packed (sum of lengths, I)."""
    if len(source.shape) >= 3:
        first, second = source.shape[:2]
        return (second, first) if op.attributes.get("batch_first", False) else (first, second)
    num_tokens = math.prod(source.shape[:-1])
    batch_sizes: Sequence[int] | None = op.attributes.get("batch_sizes")
    if batch_sizes:
        return len(batch_sizes), max(1, num_tokens // len(batch_sizes))
    # Without lengths, the states' shape gives the number of sequences.
    shapes = (spec.shape for spec in op.inputs if len(spec.shape) == 3)
    num_sequences = next((shape[1] for shape in shapes if shape[0] == states), 1)
    return max(1, math.ceil(num_tokens / max(1, num_sequences))), num_sequences


def _sizes(op: Op, settings: Settings) -> _Sizes:
    """Read the sizes of ``_cudnn_rnn`` and ``mkldnn_rnn_layer``, forward or backward.

    The weights are found by their number of rows, at any position. The input is the first tensor,
    or, in the backward operator, the tensor before the states.
    """
    mode = int(op.attributes.get("mode", 2))
    hidden_size = int(op.attributes["hidden_size"])
    num_directions = 2 if op.attributes.get("bidirectional", False) else 1
    num_layers = int(op.attributes.get("num_layers", 1))
    if base_name(op.name).startswith("mkldnn"):
        # The operator is one layer in one direction, whatever the network has.
        num_layers = num_directions = 1
    gate_width = _NUM_GATES[mode] * hidden_size
    weights = [
        index
        for index, spec in enumerate(op.inputs)
        if index and len(spec.shape) == 2 and spec.shape[0] == gate_width
    ]
    num_state_tensors = 2 if _MODE_NAMES[mode] == "lstm" else 1
    source = op.inputs[max(0, weights[0] - num_state_tensors - 1) if weights else 0]
    num_steps, num_sequences = _sequence_sizes(op, source, num_layers * num_directions)
    width = op.inputs[weights[0]].shape[1] if weights else source.shape[-1]
    return _Sizes(
        mode=mode,
        num_steps=num_steps,
        num_sequences=num_sequences,
        hidden_size=hidden_size,
        gate_width=gate_width,
        widths=(width, *(num_directions * hidden_size for _ in range(num_layers - 1))),
        num_directions=num_directions,
        element_bytes=source.element_bytes,
        precision=tensor_core_precision(source, allow_tf32=settings.allow_tf32_convolution),
        is_plain=len(source.shape) >= 3 and not op.attributes.get("proj_size", 0),
    )


def _recurrence(sizes: _Sizes, *, is_backward: bool) -> Kernel:
    """Return the time steps of all layers: product with the hidden state, then the gates."""
    n, k = sizes.gate_width, sizes.hidden_size
    # Passes over the time steps: one per layer and direction.
    num_sweeps = len(sizes.widths) * sizes.num_directions
    num_tokens = num_sweeps * sizes.num_steps * sizes.num_sequences
    num_gates, hidden_numel = num_tokens * n, num_tokens * k
    # Training keeps the gates. Backward reads them, the cells and the gradient of the output.
    read_numel = num_sweeps * n * k + num_gates + (2 * hidden_numel if is_backward else 0)
    write_numel = num_gates + (0 if is_backward else 2 * hidden_numel)
    name = _MODE_NAMES[sizes.mode]
    kernel = Kernel(
        family=Family.RECURRENT,
        flop=2.0 * num_gates * k + _FLOP_PER_GATE * num_gates,
        read_bytes=float(read_numel * sizes.element_bytes),
        write_bytes=float(write_numel * sizes.element_bytes),
        precision=sizes.precision,
        m=sizes.num_sequences,
        n=k if is_backward else n,
        k=n if is_backward else k,
        launches=sizes.num_steps * num_sweeps,
        variant=f"{name}_backward" if is_backward else name,
    )
    if not sizes.is_plain:
        return kernel
    return in_one_kernel(kernel, hidden_size=k, num_sweeps=num_sweeps)


@RULES.add_with_settings("_cudnn_rnn miopen_rnn mkldnn_rnn_layer")
def _lower_rnn(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    sizes = _sizes(op, settings)
    num_tokens = sizes.num_steps * sizes.num_sequences
    projections = [
        sizes.gemm(num_tokens, sizes.gate_width, width)
        for width in sizes.widths
        for _ in range(sizes.num_directions)
    ]
    return *projections, _recurrence(sizes, is_backward=False)


@RULES.add_with_settings("_cudnn_rnn_backward miopen_rnn_backward mkldnn_rnn_layer_backward")
def _lower_rnn_backward(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower the backward pass: the steps in reverse, then GEMMs over all of them at once.

    These are, per layer and direction, the gradients of its input and of its two weights.
    """
    sizes = _sizes(op, settings)
    num_tokens, gates = sizes.num_steps * sizes.num_sequences, sizes.gate_width
    gemms = [
        gemm
        for width in sizes.widths
        for _ in range(sizes.num_directions)
        for gemm in (
            sizes.gemm(num_tokens, width, gates),
            sizes.gemm(gates, width, num_tokens),
            sizes.gemm(gates, sizes.hidden_size, num_tokens),
        )
    ]
    return _recurrence(sizes, is_backward=True), *gemms


@RULES.add(
    """
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
    """
)
def _lower_cell(op: Op) -> Kernels:
    """Lower one fused step of a cell; its products are separate operators."""
    flop = _FLOP_PER_GATE * max(spec.numel for spec in op.inputs)
    cell = streaming_kernel(op, flop=flop)
    biases = [spec for spec in op.outputs if len(spec.shape) == 1]
    if "backward" not in op.name or not biases:
        return cell
    gates = max(op.outputs, key=lambda spec: spec.numel)
    return cell, reduction_kernel(
        op,
        flop=gates.numel * len(biases),
        read_bytes=tensor_bytes(gates) * len(biases),
        write_bytes=total_bytes(biases),
        launches=len(biases),
    )


@RULES.add("_cudnn_rnn_flatten_weight")
def _lower_flatten_weights(op: Op) -> Kernel:
    """Lower ``_cudnn_rnn_flatten_weight``: zero one buffer, copy each weight into it."""
    return streaming_kernel(op, flop=0, launches=len(op.inputs) + 1)


@RULES.add("_pack_padded_sequence _pack_padded_sequence_backward")
def _lower_packing(op: Op) -> Kernel:
    """Lower ``_pack_padded_sequence(input, lengths)``: copies of the valid part."""
    # One launch per change in the number of sequences; at most one per time step.
    data, *batch_sizes = op.outputs
    launches = max(1, 1, *(spec.numel for spec in batch_sizes))
    copied = float(data.num_bytes)
    return streaming_kernel(op, flop=0, read_bytes=copied, write_bytes=copied, launches=launches)
