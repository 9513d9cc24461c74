"""What was published of the neural ODE and of its matrix-vector products."""

from __future__ import annotations

from dataclasses import dataclass

NEURAL_ODE_SOURCE = "question and answer on the GPU training of a neural ODE (DiffEqFlux, Julia)"
NEURAL_ODE_CLAIM = "orders of magnitude faster on the CPU than on a K40c"
NEURAL_ODE_ITERATIONS = 1_000
# Its packages are of 2019 and 2020; PyTorch then was at 1.1 to 1.6.
NEURAL_ODE_FRAMEWORK = "torch 1.4 CUDA 10.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedProduct:
    """A matrix-vector product, timed in Julia.

    Args:
        num_rows: Of the matrix.
        num_columns: Of the matrix.
        cpu_ns: On the CPU; of the larger one, BLAS with its threads.
        gpu_ns: On the GPU.
    """

    num_rows: int
    num_columns: int
    cpu_ns: float
    gpu_ns: float


MATVEC_TIMES = (
    PublishedProduct(num_rows=100, num_columns=3, cpu_ns=251.695, gpu_ns=12_212.0),
    PublishedProduct(num_rows=100, num_columns=100, cpu_ns=56_299.0, gpu_ns=12_499.0),
)
