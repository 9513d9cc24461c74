"""Kernels: the work that a device runs for an operator, and its family and tiles."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from breakeven.device import Precision
from breakeven.errors import Caveat

# Results that one thread block computes, rows (along m) × columns (along n).
_TILES = (
    (128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (64, 32),
    (128, 32), (32, 128), (32, 32), (8, 128), (128, 8),
)  # fmt: skip
# Plain units, or matrix units.
Arithmetic = Literal["vector", "tensor"]
TileSet = Literal["small", "8+", "32+", "64+", "128+", "128x128", "64x128", "128x32"]
# Tiles that a library chooses from. Take the fastest one, which is the aim of its heuristic, or the
# only one that it has. Source: the kernels named in the rows of NeuSight's batched products: all
# of an A100 run ampere_sgemm_128x128; all of a P100 and a P4 maxwell_sgemm_128x64, with the
# longer side along n; those of a V100 and a T4 five different ones.
TILE_SETS: dict[TileSet, tuple[tuple[int, int], ...]] = {
    "small": ((64, 64), (32, 128), (128, 32)),
    "8+": _TILES,
    "32+": tuple(tile for tile in _TILES if min(tile) >= 32),
    "64+": tuple(tile for tile in _TILES if min(tile) >= 64),
    "128+": tuple(tile for tile in _TILES if min(tile) >= 128),
    "128x128": ((128, 128),),
    "64x128": ((64, 128),),
    "128x32": ((128, 32),),
}
TILE_SET_NAMES: tuple[TileSet, ...] = tuple(TILE_SETS)

# A tile smaller than this does not keep an SM busy alone: several run concurrently.
FULL_TILE = 8192

# Bytes of the widest load; rows start at multiples of it if possible.
ALIGNED_BYTES = 16


class Family(StrEnum):
    """Kernels that share a cost model."""

    GEMM = "gemm"
    BATCHED_GEMM = "batched_gemm"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ATTENTION = "attention"
    GATHER = "gather"
    RECURRENT = "recurrent"
    POOLING = "pooling"
    SORT = "sort"
    LINALG = "linalg"


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to compute a kernel on plain units: Winograd's, for a convolution.

    Args:
        flop: Arithmetic, including the losses that keep it below the rate of a plain product.
        m: Rows of its product; ``n``, ``k`` and ``batch`` as in `Kernel`.
        n: Columns.
        k: Length of the contraction.
        batch: Independent products.
        workspace_bytes: Memory traffic besides the kernel's own.
        tiles: The tiles of its own kernel; None if the library's products compute it.
    """

    flop: float
    m: int
    n: int
    k: int
    batch: int = 1
    workspace_bytes: float = 0.0
    tiles: TileSet | None = None


class Kernel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Work of one kernel, independent of the device that runs it.

    Args:
        family: Cost model of the kernel.
        flop: Arithmetic; a fused multiply-add is 2 FLOP.
        read_bytes: Bytes that must come from DRAM at least once.
        write_bytes: Bytes that must go to DRAM at least once.
        precision: Arithmetic used.
        m: Rows of a GEMM's result (for a convolution, of its implicit GEMM); 0 elsewhere.
        n: Columns of the result.
        k: Length of the contraction.
        batch: Independent GEMMs of that size (groups, for a convolution).
        launches: Kernels launched back to back for this work; split-K and multi-pass
            reductions take more than one.
        num_steps: Sequential steps of each launch: time steps of a recurrent layer, or columns of
            a factorization times the waits per column.
        conversion_bytes: Bytes that a change of memory format moves before and after, if matrix
            units compute.
        matrix_share: Fraction of the model's time that matrix units take, if the memory format
            suits them better than the format of the steps behind the model's fit.
        alignment_bytes: Common divisor of the row starts of a product's matrices, up to
            `ALIGNED_BYTES`; 0 if alignment does not matter.
        loads: Loads of single elements by single threads, if each thread fetches both operands of
            every multiplication; 0 elsewhere.
        num_blocks: Thread blocks that share the work, if its shape limits them (a batch norm has
            one for each channel); 0 if there are enough for any device.
        algorithms: Alternatives of the library on plain units; it takes the fastest.
        time_factor: Factor on the model's time that compiled steps showed.
        variant: Finer key of the calibration within the family: ``depthwise``, ``transposed``,
            ``backward_weight``, ``flash``, ... Empty for the common case.
    """

    family: Family
    flop: float
    read_bytes: float
    write_bytes: float
    precision: Precision = Precision.FP32
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    launches: int = 1
    num_steps: int = 1
    conversion_bytes: float = 0.0
    matrix_share: float = 1.0
    alignment_bytes: int = 0
    loads: float = 0.0
    num_blocks: int = 0
    algorithms: tuple[Algorithm, ...] = ()
    time_factor: float = 1.0
    variant: str = ""

    @property
    def num_bytes(self) -> float:
        """Return the DRAM traffic, reads and writes."""
        return self.read_bytes + self.write_bytes


class Lowering(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kernels of one operator; none for a view.

    Args:
        kernels: Kernels in launch order.
        caveat: Set if the operator has no cost model and is costed by the bytes it moves.
    """

    kernels: tuple[Kernel, ...]
    caveat: Caveat | None = None
