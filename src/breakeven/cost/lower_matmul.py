"""Matrix products.

Letters: M rows and N columns of the result, K contracted, B independent products.
"""

from __future__ import annotations

import math

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import RuleTable, base_name, is_in_place
from breakeven.cost.traffic import (
    multiply_add_flop,
    streaming_kernel,
    tensor_core_precision,
    total_bytes,
)
from breakeven.trace import Op, Settings, TensorSpec

RULES = RuleTable()


def gemm_kernel(
    op: Op,
    settings: Settings,
    *,
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    read_bytes: float | None = None,
) -> Kernel:
    """Return the kernel of a product (m, k) × (k, n), or of ``batch`` of them where it is given.

    One product in a batch of one is still a batched GEMM: torch calls the batched kernel. The
    dtype is that of the last input of ``op``.
    """
    operand = op.inputs[-1]
    return Kernel(
        family=Family.GEMM if batch is None else Family.BATCHED_GEMM,
        flop=float(multiply_add_flop(operand) * m * n * k * (1 if batch is None else batch)),
        read_bytes=total_bytes(op.inputs) if read_bytes is None else read_bytes,
        write_bytes=total_bytes(op.outputs),
        precision=tensor_core_precision(operand, allow_tf32=settings.allow_tf32_matmul),
        m=m,
        n=n,
        k=k,
        batch=1 if batch is None else batch,
    )


def _product_sizes(op: Op, left: TensorSpec, right: TensorSpec) -> tuple[int | None, int, int, int]:
    """Return (batch, m, n, k) of ``left @ right`` with torch's rules for vectors and batches."""
    k = left.shape[-1]
    n = right.shape[-1] if len(right.shape) > 1 else 1
    m = left.shape[-2] if len(left.shape) > 1 else 1
    if base_name(op.name) == "addbmm":
        return None, m, n, left.numel // m if m else 0
    if len(right.shape) <= 2:
        # Leading dimensions of the left operand fold into its rows: one GEMM.
        return None, left.numel // k if k else 0, n, k
    products = [left.numel // (m * k) if m * k else 0, right.numel // (n * k) if n * k else 0]
    return max(products), m, n, k


@RULES.add_with_settings("mm addmm _addmm_activation bmm baddbmm addbmm matmul")
def _lower_product(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    *added, left, right = op.inputs
    batch, m, n, k = _product_sizes(op, left, right)
    if op.attributes.get("beta", 1) == 0:
        added = []
    kernels: list[Kernel] = []
    # cuBLASLt adds a bias vector in the epilogue. A full matrix is copied into the result first,
    # and the GEMM accumulates onto it. Source: aten/src/ATen/native/cuda/Blas.cpp, addmm_out.
    accumulates = [spec for spec in added if len(spec.shape) > 1]
    if accumulates and not is_in_place(op.name):
        copied_bytes = total_bytes(accumulates)
        kernels.append(streaming_kernel(op, flop=0, read_bytes=copied_bytes))
    kernels.append(
        gemm_kernel(
            op, settings, m=m, n=n, k=k, batch=batch, read_bytes=total_bytes((*added, left, right))
        )
    )
    return tuple(kernels)


@RULES.add("mv addmv dot vdot")
def _lower_vector_product(op: Op) -> Kernel:
    """Lower ``mv``, ``addmv``, ``dot``: cuBLAS reduces rows, each element read once, no tiles."""
    *_, left, right = op.inputs
    flop = multiply_add_flop(right) * max(left.numel, right.numel)
    return streaming_kernel(op, family=Family.REDUCTION, flop=flop)


@RULES.add_with_settings("linear mkldnn_linear")
def _lower_linear(op: Op, settings: Settings) -> Kernel:
    """Lower ``linear(input (…, K), weight (N, K), bias (N))``."""
    source, weight = op.inputs[0], op.inputs[1]
    k = weight.shape[-1]
    n = weight.numel // k if k else 0
    m = source.numel // k if k else 0
    return gemm_kernel(op, settings, m=m, n=n, k=k)


@RULES.add_with_settings("_grouped_mm")
def _lower_grouped(op: Op, settings: Settings) -> Kernel:
    """Lower ``_grouped_mm(self, mat2, offs?)``: a GEMM per expert, in one launch.

    The dimension that the experts share out is the one without a group dimension: M of self
    (M, K) with mat2 (G, K, N); N of self (G, M, K) with mat2 (K, N); K of two matrices, whose
    result is (G, M, N). Shares are taken to be equal.
    """
    left, right = op.inputs[0], op.inputs[1]
    result = op.outputs[0]
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    num_groups = next(spec.shape[0] for spec in (left, right, result) if len(spec.shape) == 3)
    if len(left.shape) == 2 and len(right.shape) == 3:
        m = math.ceil(m / num_groups)
    elif len(left.shape) == 3 and len(right.shape) == 2:
        n = math.ceil(n / num_groups)
    elif len(left.shape) == 2:
        k = math.ceil(k / num_groups)
    read_bytes = total_bytes(op.inputs)
    matrices = msgspec.structs.replace(op, inputs=(left, right))
    return gemm_kernel(matrices, settings, m=m, n=n, k=k, batch=num_groups, read_bytes=read_bytes)


@RULES.add("_cdist_forward _cdist_backward _pdist_forward _pdist_backward")
def _lower_distance(op: Op) -> Kernel:
    """Lower pairwise distances of x1 (…, P, K) and x2 (…, R, K): subtract, power, add.

    Computed by a kernel of its own on the plain units, not as a GEMM.
    """
    k = op.inputs[-1].shape[-1] if op.inputs[-1].shape else 1
    pairs = max(spec.numel for spec in (op.outputs if "forward" in op.name else op.inputs))
    return streaming_kernel(op, family=Family.REDUCTION, flop=3 * pairs * k)


@RULES.add_with_settings("_euclidean_dist")
def _lower_euclidean_distance(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``_euclidean_dist(x1, x2)``: squared norms, concatenation, one GEMM, square root."""
    left, right = op.inputs
    p, r, k = left.shape[-2], right.shape[-2], left.shape[-1]
    batch = left.numel // (p * k) if p * k else 0
    operand_bytes = total_bytes(op.inputs)
    written_bytes = total_bytes(op.outputs)
    prepare = streaming_kernel(
        op, flop=2 * (left.numel + right.numel), write_bytes=operand_bytes, launches=8
    )
    product = gemm_kernel(op, settings, m=p, n=r, k=k + 2, batch=batch)
    finish = streaming_kernel(
        op, flop=2 * batch * p * r, read_bytes=2 * written_bytes, write_bytes=2 * written_bytes,
        launches=2,
    )  # fmt: skip
    return prepare, product, finish


@RULES.add("_trilinear")
def _lower_trilinear(op: Op) -> Kernel:
    """Lower ``_trilinear`` (``nn.Bilinear``): a broadcast product of three, then a sum.

    It loops over one dimension of the weight; each turn is a product, a product and a sum.
    Source: aten/src/ATen/native/Linear.cpp, _trilinear.
    """
    x1, weight, x2 = op.inputs
    unrolled = int(op.attributes.get("unroll_dim", 1))
    num_products = x1.shape[0] * weight.numel
    flop = 3 * num_products
    turns = max(1, weight.shape[unrolled])
    intermediate_bytes = num_products / turns * weight.element_bytes
    return streaming_kernel(
        op,
        family=Family.REDUCTION,
        flop=flop,
        read_bytes=total_bytes((x1, weight, x2)) + 2 * turns * intermediate_bytes,
        write_bytes=2 * turns * intermediate_bytes,
        launches=3 * turns,
    )
