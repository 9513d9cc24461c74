"""Tiles of matrix products: what GEMM and convolution libraries ship."""

from __future__ import annotations

from typing import Literal

# Results that one thread block computes, rows (along m) × columns (along n).
_TILES = (
    (128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (64, 32),
    (128, 32), (32, 128), (32, 32), (8, 128), (128, 8),
)  # fmt: skip
TileSet = Literal["small", "8+", "32+", "64+", "128+", "128x128", "64x128", "128x32"]
# Which of them a library chooses from, the fastest being taken, as its heuristic means to; or the
# only one that it has. Source: the kernels named in the rows of NeuSight's batched products: all
# of an A100 run ampere_sgemm_128x128, all of a P100 and a P4 maxwell_sgemm_128x64, of which the
# longer side lies along n, those of a V100 and a T4 five different ones.
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

# Smaller tiles than this do not keep an SM busy alone: several run beside each other.
FULL_TILE = 8192
