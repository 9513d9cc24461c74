"""KERN005: small matrices are factorized on the device.

What it does:
    Finds SVD, QR, eigenvalues, Cholesky, inverses and solutions of linear systems on the
    device for matrices of at most 400 rows and columns.

Why it costs time:
    A factorization is a chain of small steps, each of which waits for the one before. The
    libraries launch kernels for each step, many of them matrix by matrix, read a flag of errors
    back, and leave nearly all of the GPU idle.

Evidence:
    In public reports the CPU was 20 to 70 times faster: SVD 2.0 against 143 ms, QR 0.11
    against 8.1 s on an H100, Cholesky 0.25 against 5.0 s. Those matrices have up to 64 rows.
    An L40S takes 0.19 ms for the Cholesky factor of 512 rows and 0.95 ms for 2,048: time grows
    with the rows, as a chain does, not with their cube. A CPU core that computes 80 GFLOP/s
    takes as long up to some 300 rows, and older GPUs take longer than an L40S.

Fix:
    Factorize on the CPU and copy the result back, ask only for what is needed
    (``svdvals``), or write the closed form for matrices of two or three rows. From 65 rows on
    the GPU may be as fast as the CPU, but gains little: give it many matrices in one call.

    ```python
    u, s, v = torch.linalg.svd(cov)
    ```

    ```python
    u, s, v = (t.to(cov.device) for t in torch.linalg.svd(cov.cpu()))
    ```

Known limits:
    No gain is simulated: the shipped figures hold no small factorizations, and newer versions
    of torch have batched kernels for some. The trip to the CPU makes the host wait for the
    device, which many large batches may not be worth.
"""

from __future__ import annotations

from typing import Final

from breakeven.doctor.events import bare_name, op_at
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, times_per_step
from breakeven.trace import Op

CAUSE = "LINALG_SMALL"

# From here on a GPU wins; up to 64 rows public reports saw the CPU win by far. cuSOLVER's chain of
# panels takes an L40S 0.36 µs a row (512 rows: 0.186 ms, 2,048: 0.951 ms), a CPU n³/3 FLOP at 80
# GFLOP/s (256 rows: 68 µs): both take 110 µs at 300 rows. GPUs with half the clock take twice as
# long, as the CPU does at 400 rows.
# Source: torch.linalg.cholesky in https://github.com/ml-explore/mlx/pull/4262 (GPU) and
# https://trnsci.dev/trnsolver/benchmarks/ (CPU).
_MAX_SMALL_MATRIX = 400
_FACTORIZATIONS: Final = frozenset(
    ("_linalg_svd", "linalg_svd", "svd", "linalg_qr", "geqrf", "_linalg_eigh", "linalg_eigh",
     "linalg_eig", "linalg_eigvals", "_linalg_eigvals", "linalg_cholesky_ex", "linalg_cholesky",
     "cholesky", "linalg_inv_ex", "linalg_inv", "_linalg_solve_ex", "linalg_lstsq", "linalg_pinv",
     "linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet")
)  # fmt: skip


def detect(case: Case) -> Found:
    small = [index for index, op in case.each_on_device() if _factorized(op) is not None]
    for location, events in by_line(case.trace, small):
        op = op_at(case.trace, events[0])
        rows, columns = _factorized(op) or (0, 0)
        what = bare_name(op).strip("_").removeprefix("linalg_").removesuffix("_ex")
        batch = max(1, op.inputs[0].numel // max(1, rows * columns))
        yield Occurrence(
            title=f"{what} of {rows} × {columns} matrices on the GPU {times_per_step(len(events))}",
            fix="factorize on the CPU (.cpu() and back), many in one call, or by a closed form",
            evidence=f"{bare_name(op)} on {op.device}, {batch} matrices at a time",
            location=location,
            events=events,
        )


def _factorized(op: Op) -> tuple[int, int] | None:
    """Return rows and columns of the factorized matrix; None where there is no small one."""
    shapes = [spec.shape[-2:] for spec in op.inputs if len(spec.shape) > 1]
    if bare_name(op) not in _FACTORIZATIONS or not shapes or max(shapes[0]) > _MAX_SMALL_MATRIX:
        return None
    return shapes[0][0], shapes[0][1]
