"""Matrix products, factorizations and Fourier transforms.

Letters: M rows and N columns of the result, K contracted, B independent products; in linear
algebra, B matrices of R rows and C columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from breakeven.cost.kernel import ALIGNED_BYTES, Family, Kernel
from breakeven.cost.rules import (
    RuleTable,
    Streaming,
    base_name,
    is_in_place,
    multiply_add_flop,
    output_numel,
    precision_of,
    reduction_kernel,
    streaming_kernel,
    tensor_core_precision,
    total_bytes,
)
from breakeven.trace import Op, Settings, TensorSpec

RULES = RuleTable()

# Narrower products use separate kernels, which are bound by memory.
_LEAST_TILED = 32


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
    """Return the kernel of a product (m, k) × (k, n), or of ``batch`` such products.

    One product in a batch of one is still a batched GEMM: torch calls the batched kernel. The
    dtype is that of the last input of ``op``.
    """
    operand = op.inputs[-1]
    rows = (_row_bytes(spec) for spec in (*op.inputs, *op.outputs) if len(spec.shape) > 1)
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
        # Common divisor of the row starts of all matrices.
        alignment_bytes=math.gcd(ALIGNED_BYTES, *rows) if min(m, n) >= _LEAST_TILED else 0,
    )


def unaligned_operands(op: Op) -> tuple[TensorSpec, ...]:
    """Return the input matrices of a product whose rows are not aligned to the widest load."""
    matrices = (spec for spec in op.inputs if len(spec.shape) > 1)
    return tuple(spec for spec in matrices if _row_bytes(spec) % ALIGNED_BYTES)


def _row_bytes(spec: TensorSpec) -> int:
    return spec.shape[-2 if spec.layout == "transposed" else -1] * spec.element_bytes


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
    products = left.numel // (m * k) if m * k else 0, right.numel // (n * k) if n * k else 0
    return max(products), m, n, k


@RULES.add_with_settings("mm addmm _addmm_activation bmm baddbmm addbmm matmul")
def _lower_product(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    *added, left, right = op.inputs
    batch, m, n, k = _product_sizes(op, left, right)
    added = [] if op.attributes.get("beta", 1) == 0 else added
    read_bytes = total_bytes((*added, left, right))
    product = gemm_kernel(op, settings, m=m, n=n, k=k, batch=batch, read_bytes=read_bytes)
    # cuBLASLt adds a bias vector in the epilogue. A full matrix is copied into the result first,
    # and the GEMM accumulates onto it. Source: aten/src/ATen/native/cuda/Blas.cpp, addmm_out.
    accumulates = [spec for spec in added if len(spec.shape) > 1]
    if not accumulates or is_in_place(op.name):
        return (product,)
    return streaming_kernel(op, flop=0, read_bytes=total_bytes(accumulates)), product


@RULES.add("mv addmv dot vdot")
def _lower_vector_product(op: Op) -> Kernel:
    """Lower ``mv``, ``addmv``, ``dot``: cuBLAS reduces rows, each element read once, no tiles."""
    *_, left, right = op.inputs
    flop = multiply_add_flop(right) * max(left.numel, right.numel)
    return reduction_kernel(op, flop=flop)


@RULES.add_with_settings("linear mkldnn_linear")
def _lower_linear(op: Op, settings: Settings) -> Kernel:
    """Lower ``linear(input (…, K), weight (N, K), bias (N))``."""
    source, weight = op.inputs[0], op.inputs[1]
    k = weight.shape[-1]
    return gemm_kernel(op, settings, m=source.numel // max(1, k), n=weight.numel // max(1, k), k=k)


@RULES.add_with_settings("_grouped_mm")
def _lower_grouped(op: Op, settings: Settings) -> Kernel:
    """Lower ``_grouped_mm(self, mat2, offs?)``: a GEMM per expert, in one launch.

    The experts share the dimension that has no group dimension: M of self (M, K) with mat2
    (G, K, N); N of self (G, M, K) with mat2 (K, N); K of two matrices, whose result is (G, M, N).
    Their shares are assumed to be equal.
    """
    left, right, result = op.inputs[0], op.inputs[1], op.outputs[0]
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    num_groups = next(spec.shape[0] for spec in (left, right, result) if len(spec.shape) == 3)
    match len(left.shape), len(right.shape):
        case 2, 3:
            m = math.ceil(m / num_groups)
        case 3, 2:
            n = math.ceil(n / num_groups)
        case 2, _:
            k = math.ceil(k / num_groups)
        case _:
            pass
    read_bytes = total_bytes(op.inputs)
    matrices = msgspec.structs.replace(op, inputs=(left, right))
    return gemm_kernel(matrices, settings, m=m, n=n, k=k, batch=num_groups, read_bytes=read_bytes)


@RULES.add("_cdist_forward _cdist_backward _pdist_forward _pdist_backward")
def _lower_distance(op: Op) -> Kernel:
    """Lower pairwise distances of x1 (…, P, K) and x2 (…, R, K): subtract, power, add.

    A separate kernel computes it on the plain units, not as a GEMM.
    """
    k = (op.inputs[-1].shape or (1,))[-1]
    pairs = max(spec.numel for spec in (op.outputs if "forward" in op.name else op.inputs))
    return reduction_kernel(op, flop=3 * pairs * k)


@RULES.add_with_settings("_euclidean_dist")
def _lower_euclidean_distance(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``_euclidean_dist(x1, x2)``: squared norms, concatenation, one GEMM, square root."""
    left, right = op.inputs
    p, r, k = left.shape[-2], right.shape[-2], left.shape[-1]
    batch = left.numel // (p * k) if p * k else 0
    flop = 2 * (left.numel + right.numel)
    prepare = streaming_kernel(op, flop=flop, write_bytes=total_bytes(op.inputs), launches=8)
    product = gemm_kernel(op, settings, m=p, n=r, k=k + 2, batch=batch)
    flop, moved_bytes = 2 * batch * p * r, 2 * total_bytes(op.outputs)
    finish = streaming_kernel(
        op, flop=flop, read_bytes=moved_bytes, write_bytes=moved_bytes, launches=2
    )
    return prepare, product, finish


# FLOP of factorizations: Golub and Van Loan, "Matrix Computations", 4th edition, 2013. Those of
# iterative ones (SVD, eigenvalues) are the book's figures for all vectors. A library factorizes in
# panels; each panel takes a few launches and waits for the one before. Small matrices of a batch
# share one launch.
_PANEL_COLUMNS = 32
_LAUNCHES_PER_PANEL = 3

_FlopOfMatrix = Callable[[int, int], float]


def _by_name(*rows: tuple[str, _FlopOfMatrix]) -> dict[str, _FlopOfMatrix]:
    return {name: flop for names, flop in rows for name in names.split()}


# FLOP of one matrix of (rows, columns).
_FACTORIZATION_FLOP = _by_name(
    ("cholesky linalg_cholesky_ex cholesky_inverse", lambda r, c: r**3 / 3),
    (
        "linalg_lu linalg_lu_factor_ex _linalg_det _linalg_slogdet lu_unpack linalg_ldl_factor_ex",
        lambda r, c: 2 / 3 * max(r, c) * min(r, c) ** 2,
    ),
    ("linalg_inv_ex", lambda r, c: 2.0 * r**3),
    (
        "linalg_qr geqrf linalg_householder_product ormqr linalg_lstsq linalg_pinv",
        lambda r, c: 4.0 * max(r, c) * min(r, c) ** 2,
    ),
    ("_linalg_svd", lambda r, c: 4.0 * max(r, c) ** 2 * min(r, c) + 22.0 * min(r, c) ** 3),
    ("_linalg_eigh", lambda r, c: 9.0 * r**3),
    ("linalg_eig linalg_eigvals _linalg_eigvals", lambda r, c: 25.0 * r**3),
    # Five products of a Taylor polynomial, and about five squarings.
    ("linalg_matrix_exp", lambda r, c: 20.0 * r**3),
)

# FLOP of a solution for one right-hand side, including the factorization before it.
_SOLVE_FLOP = _by_name(
    ("linalg_solve_triangular triangular_solve", lambda r, rhs: 1.0 * r**2 * rhs),
    (
        "cholesky_solve _cholesky_solve_helper linalg_lu_solve linalg_ldl_solve",
        lambda r, rhs: 2.0 * r**2 * rhs,
    ),
    ("_linalg_solve_ex", lambda r, rhs: 2 / 3 * r**3 + 2.0 * r**2 * rhs),
)

_SMALL_MATRIX = 32

# Waits of a column for the one before, by the first matching part of the operator's name. Cholesky
# waits for the root of the pivot and for the update; LU also for the search of the pivot and the
# exchange of rows; QR for two norms and their products. A row of a solve waits only within its
# block of the diagonal. A tridiagonal form multiplies the whole matrix by each column, and Jacobi's
# method for singular values (cuSOLVER's gesvdj) sweeps over all columns some ten times.
_WAITS_PER_COLUMN = {
    "lu_unpack": 0.5, "ormqr": 0.5, "svd": 40.0, "pinv": 40.0, "eig": 20.0, "qr": 6.0,
    "lstsq": 6.0, "solve_ex": 4.0, "solve": 0.5, "cholesky": 2.0, "lu": 4.0, "ldl": 4.0,
    "det": 4.0, "inv": 4.0, "": 0.5,
}  # fmt: skip


def _linalg_kernel(op: Op, *, batch: int, rows: int, columns: int, flop: float) -> Kernel:
    panels = max(1, math.ceil(min(rows, columns) / _PANEL_COLUMNS))
    launches = 1 if max(rows, columns) <= _SMALL_MATRIX else _LAUNCHES_PER_PANEL * panels
    name = base_name(op.name)
    waits = next(waits for part, waits in _WAITS_PER_COLUMN.items() if part in name)
    return Kernel(
        family=Family.LINALG,
        flop=flop * batch,
        read_bytes=total_bytes(op.inputs),
        write_bytes=total_bytes(op.outputs),
        precision=precision_of(op),
        batch=batch,
        launches=launches,
        num_steps=max(1, round(waits * min(rows, columns) / launches)),
        variant=name.strip("_"),
    )


@RULES.add(_FACTORIZATION_FLOP)
def _lower_factorization(op: Op) -> Kernel:
    *leading, rows, columns = op.inputs[0].shape
    flop = _FACTORIZATION_FLOP[base_name(op.name)](rows, columns)
    return _linalg_kernel(op, batch=math.prod(leading), rows=rows, columns=columns, flop=flop)


@RULES.add(_SOLVE_FLOP)
def _lower_solve(op: Op) -> Kernel:
    """Lower solvers; the square operand is the matrix, in either order."""
    matrices = [spec for spec in op.inputs if len(spec.shape) > 1]
    square = [spec for spec in matrices if spec.shape[-1] == spec.shape[-2]]
    *leading, rows, _ = (square or matrices)[0].shape
    batch = math.prod(leading)
    right_hand_sides = max(1, output_numel(op) // max(1, batch * rows))
    flop = _SOLVE_FLOP[base_name(op.name)](rows, right_hand_sides)
    return _linalg_kernel(op, batch=batch, rows=rows, columns=rows, flop=flop)


# Two products and a difference per element.
RULES.add("linalg_cross")(Streaming(flop_per_output=3))


# Elements that a block transforms in shared memory; a longer transform needs another pass.
_FFT_BLOCK = 4096


@RULES.add("_fft_c2c _fft_r2c _fft_c2r")
def _lower_fft(op: Op) -> Kernel:
    """Lower ``_fft_r2c`` and similar: 5 N log2 N per complex transform, half for a real one.

    Memory bounds it, so it is costed as streaming; each dimension is a pass.
    """
    shape = max(op.inputs[0], op.outputs[0], key=lambda spec: spec.numel).shape
    numel = math.prod(shape)
    dimensions: list[int] = op.attributes.get("dim", [-1])
    lengths = [shape[dimension] for dimension in dimensions]
    per_element = 5.0 if base_name(op.name) == "_fft_c2c" else 2.5
    flop = sum(per_element * numel * math.log2(max(2, length)) for length in lengths)
    passes = sum(1 if length <= _FFT_BLOCK else 2 for length in lengths)
    # Each pass after the first reads the results of the pass before.
    between_bytes = (passes - 1) * total_bytes(op.outputs)
    return streaming_kernel(
        op,
        flop=flop,
        read_bytes=total_bytes(op.inputs) + between_bytes,
        write_bytes=total_bytes(op.outputs) + between_bytes,
        launches=max(1, passes),
        variant="fft",
    )
