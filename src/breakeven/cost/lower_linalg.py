"""Dense linear algebra and Fourier transforms.

FLOP of factorizations: Golub and Van Loan, "Matrix Computations", 4th edition, 2013. Those of
iterative ones (SVD, eigenvalues) are the book's figures for all vectors. Letters: B matrices of
R rows and C columns. A library factorizes in panels, each a few launches that wait for the
panel before; small matrices of a batch share one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import RuleTable, base_name
from breakeven.cost.traffic import (
    Streaming,
    output_numel,
    precision_of,
    streaming_kernel,
    total_bytes,
)
from breakeven.trace import Op

RULES = RuleTable()

_PANEL_COLUMNS = 32
_LAUNCHES_PER_PANEL = 3

_FlopOfMatrix = Callable[[int, int], float]

# FLOP of one matrix of (rows, columns).
_FACTORIZATION_FLOP: dict[str, _FlopOfMatrix] = {
    **dict.fromkeys(
        ("cholesky", "linalg_cholesky_ex", "cholesky_inverse"), lambda r, c: r**3 / 3
    ),
    **dict.fromkeys(
        ("linalg_lu", "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "lu_unpack",
         "linalg_ldl_factor_ex"),
        lambda r, c: 2 / 3 * max(r, c) * min(r, c) ** 2,
    ),
    "linalg_inv_ex": lambda r, c: 2.0 * r**3,
    **dict.fromkeys(
        ("linalg_qr", "geqrf", "linalg_householder_product", "ormqr"),
        lambda r, c: 4.0 * max(r, c) * min(r, c) ** 2,
    ),
    **dict.fromkeys(
        ("linalg_lstsq", "linalg_pinv"), lambda r, c: 4.0 * max(r, c) * min(r, c) ** 2
    ),
    "_linalg_svd": lambda r, c: 4.0 * max(r, c) ** 2 * min(r, c) + 22.0 * min(r, c) ** 3,
    "_linalg_eigh": lambda r, c: 9.0 * r**3,
    **dict.fromkeys(
        ("linalg_eig", "linalg_eigvals", "_linalg_eigvals"), lambda r, c: 25.0 * r**3
    ),
    # Five products of a Taylor polynomial, and about five squarings.
    "linalg_matrix_exp": lambda r, c: 20.0 * r**3,
}  # fmt: skip

# FLOP of solving for one right-hand side, and of the factorization before it.
_SOLVE_FLOP: dict[str, _FlopOfMatrix] = {
    **dict.fromkeys(
        ("linalg_solve_triangular", "triangular_solve"), lambda r, rhs: 1.0 * r**2 * rhs
    ),
    **dict.fromkeys(
        ("cholesky_solve", "_cholesky_solve_helper", "linalg_lu_solve", "linalg_ldl_solve"),
        lambda r, rhs: 2.0 * r**2 * rhs,
    ),
    "_linalg_solve_ex": lambda r, rhs: 2 / 3 * r**3 + 2.0 * r**2 * rhs,
}

_SMALL_MATRIX = 32


def _linalg_kernel(op: Op, *, batch: int, rows: int, columns: int, flop: float) -> Kernel:
    panels = math.ceil(min(rows, columns) / _PANEL_COLUMNS)
    launches = 1 if max(rows, columns) <= _SMALL_MATRIX else _LAUNCHES_PER_PANEL * panels
    return Kernel(
        family=Family.LINALG,
        flop=flop * batch,
        read_bytes=total_bytes(op.inputs),
        write_bytes=total_bytes(op.outputs),
        precision=precision_of(op),
        batch=batch,
        launches=launches,
        variant=base_name(op.name).strip("_"),
    )


@RULES.add(_FACTORIZATION_FLOP)
def _lower_factorization(op: Op) -> Kernel:
    *leading, rows, columns = op.inputs[0].shape
    flop = _FACTORIZATION_FLOP[base_name(op.name)](rows, columns)
    return _linalg_kernel(op, batch=math.prod(leading), rows=rows, columns=columns, flop=flop)


@RULES.add(_SOLVE_FLOP)
def _lower_solve(op: Op) -> Kernel:
    """Lower solvers; the square one of the two operands is the matrix, in either order."""
    matrices = [spec for spec in op.inputs if len(spec.shape) > 1]
    square = [spec for spec in matrices if spec.shape[-1] == spec.shape[-2]]
    *leading, rows, _ = (square or matrices)[0].shape
    batch = math.prod(leading)
    right_hand_sides = max(1, output_numel(op) // max(1, batch * rows))
    flop = _SOLVE_FLOP[base_name(op.name)](rows, right_hand_sides)
    return _linalg_kernel(op, batch=batch, rows=rows, columns=rows, flop=flop)


# Two products and a difference per element.
RULES.add("linalg_cross")(Streaming(flop_per_output=3))


# Elements that a block transforms in shared memory; a longer transform makes another pass.
_FFT_BLOCK = 4096


@RULES.add("_fft_c2c _fft_r2c _fft_c2r")
def _lower_fft(op: Op) -> Kernel:
    """Lower ``_fft_r2c`` and its kin: 5 N log2 N per complex transform, half for a real one.

    Bound by memory, so it is costed as streaming; each dimension is a pass.
    """
    shape = max(op.inputs[0], op.outputs[0], key=lambda spec: spec.numel).shape
    numel = math.prod(shape)
    dimensions: list[int] = op.attributes.get("dim", [-1])
    lengths = [shape[dimension] for dimension in dimensions]
    per_element = 5.0 if base_name(op.name) == "_fft_c2c" else 2.5
    flop = sum(per_element * numel * math.log2(max(2, length)) for length in lengths)
    passes = sum(1 if length <= _FFT_BLOCK else 2 for length in lengths)
    # All passes but the first read what the one before wrote.
    between_bytes = (passes - 1) * total_bytes(op.outputs)
    return streaming_kernel(
        op,
        flop=flop,
        read_bytes=total_bytes(op.inputs) + between_bytes,
        write_bytes=total_bytes(op.outputs) + between_bytes,
        launches=max(1, passes),
        variant="fft",
    )
