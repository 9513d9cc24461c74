"""Pictures in which each pixel has a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from public_data._registry import kind


@kind
def masks(
    to: Path, *, count: int = 64, size: int = 256, num_classes: int = 2, names: str = "{:06d}_mask"
) -> None:
    """Write pictures of one channel whose pixels are numbers of classes, in blocks."""
    from PIL import Image

    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(count):
        blocks = random.integers(0, num_classes, (size // 32 + 1, size // 32 + 1), np.uint8)
        pixels = blocks.repeat(32, 0).repeat(32, 1)[:size, :size]
        Image.fromarray(pixels).save(to / f"{names.format(number)}.gif")
