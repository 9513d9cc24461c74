"""Data sets that scripts load as tensors."""

from __future__ import annotations

from pathlib import Path

from public_data._registry import kind


@kind
def mnist_tensors(to: Path, *, num_train: int = 4096, num_test: int = 1024) -> None:
    """Write training.pt and test.pt, each images and their classes, to a folder."""
    import torch

    to.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(0)
    for name, count in (("training", num_train), ("test", num_test)):
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=random)
        torch.save((images, torch.arange(count) % 10), to / f"{name}.pt")
