"""Scaled dot-product attention.

Shapes: query (B, H, S_q, D), key (B, H_kv, S_k, D), value (B, H_kv, S_k, D_v). The kernel's m, n,
k and batch are those of its first product: S_q, S_k, D and B × H. ``variant`` is the
implementation, then ``backward``.
"""

from __future__ import annotations

import math

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
    base_name,
    precision_of,
    streaming_kernel,
    tensor_core_precision,
    total_bytes,
)
from breakeven.trace import Op, Settings, TensorSpec

RULES = RuleTable()

_FUSED = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)

# The backward pass computes five products where the forward pass computes two: the scores once
# more, then the gradients of scores, query, key and value.
# Source: Dao, "FlashAttention-2", 2023, section 3.1.
_BACKWARD_PRODUCTS = 2.5

# Backward: the row sums of gradient times output, the main kernel, and the conversion of the
# query's gradient from its fp32 accumulator.
_BACKWARD_LAUNCHES = {"flash": 3, "efficient": 2, "cudnn": 3}


def _variant(op: Op) -> str:
    """Return the implementation that a GPU runs.

    The CPU's own flash attention stands for the GPU's, which takes 16-bit dtypes alone; others
    run the memory-efficient kernel.
    """
    name = base_name(op.name)
    if "efficient" in name:
        return "efficient"
    if "cudnn" in name:
        return "cudnn"
    return "flash" if op.inputs[-1].element_bytes == 2 else "efficient"


def _product_flop(op: Op, query: TensorSpec, key: TensorSpec, value: TensorSpec) -> float:
    """Return the FLOP of the two products; half the scores of a causal one are never computed."""
    *leading, num_queries, width = query.shape
    num_keys, value_width = key.shape[-2], value.shape[-1]
    num_scores = float(math.prod(leading) * num_queries * num_keys)
    if op.attributes.get("is_causal", False):
        num_scores *= (num_keys + 1) / (2 * num_keys)
    return 2.0 * num_scores * (width + value_width)


@RULES.add((*_FUSED, *(f"{name}_backward" for name in _FUSED)))
def _lower_attention(op: Op) -> Kernel:
    """Lower fused attention, forward or backward; in both, one kernel streams keys past queries."""
    is_backward = "backward" in op.name
    # The gradient of the output comes first in the arguments of the backward operator.
    query, key, value = op.inputs[1:4] if is_backward else op.inputs[:3]
    variant = _variant(op)
    flop = _product_flop(op, query, key, value)
    return Kernel(
        family=Family.ATTENTION,
        flop=flop * (_BACKWARD_PRODUCTS if is_backward else 1.0),
        read_bytes=total_bytes(op.inputs),
        write_bytes=total_bytes(op.outputs),
        # The fused kernels multiply fp32 in fp32 (or emulate it), whatever TF32 setting.
        precision=tensor_core_precision(query, allow_tf32=False),
        m=query.shape[-2],
        n=key.shape[-2],
        k=query.shape[-1],
        batch=math.prod(query.shape[:-2]),
        launches=_BACKWARD_LAUNCHES[variant] if is_backward else 1,
        variant=f"{variant}_backward" if is_backward else variant,
    )


@RULES.add_with_settings("_scaled_dot_product_attention_math scaled_dot_product_attention")
def _lower_plain_attention(op: Op, settings: Settings) -> Kernels:
    """Lower attention that stores all scores: scale, product, softmax, product."""
    query, key, value = op.inputs[:3]
    batch = math.prod(query.shape[:-2])
    m, n, k = query.shape[-2], key.shape[-2], query.shape[-1]
    scores_bytes = float(batch * m * n * query.element_bytes)
    precision = tensor_core_precision(query, allow_tf32=settings.allow_tf32_matmul)

    def product(columns: int, contracted: int, read_bytes: float, write_bytes: float) -> Kernel:
        return Kernel(
            family=Family.BATCHED_GEMM,
            flop=2.0 * batch * m * columns * contracted,
            read_bytes=read_bytes,
            write_bytes=write_bytes,
            precision=precision,
            m=m,
            n=columns,
            k=contracted,
            batch=batch,
        )

    scaled_bytes = total_bytes((query, key))
    scale = streaming_kernel(
        op,
        flop=query.numel + key.numel,
        read_bytes=scaled_bytes,
        write_bytes=scaled_bytes,
        launches=2,
    )
    softmax = Kernel(
        family=Family.SOFTMAX,
        flop=float((TRANSCENDENTAL_FLOP + 4) * batch * m * n),
        read_bytes=scores_bytes,
        write_bytes=scores_bytes,
        precision=precision_of(op),
    )
    value_bytes = total_bytes((value,))
    result_bytes = float(batch * m * value.shape[-1] * query.element_bytes)
    return (
        scale,
        product(n, k, scaled_bytes, scores_bytes),
        softmax,
        product(value.shape[-1], n, scores_bytes + value_bytes, result_bytes),
    )
