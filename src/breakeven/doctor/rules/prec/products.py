"""What tensor cores run."""

from __future__ import annotations

from typing import Final

from breakeven.cost import Family

PRODUCTS: Final = frozenset(
    (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT)
)
