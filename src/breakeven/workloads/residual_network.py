"""A residual network in torch alone, for machines without torchvision.

Source: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1, with the stride in
the 3 × 3 convolution, as torchvision has it.
"""

from __future__ import annotations

import torch
from torch import nn

# Blocks of each of the four stages, and how many times as wide a block ends.
STAGES = {18: ((2, 2, 2, 2), 1), 34: ((3, 4, 6, 3), 1), 50: ((3, 4, 6, 3), 4)}
_WIDTH = 64


class ResidualNetwork(nn.Module):
    """A classifier of images.

    Args:
        depth: 18, 34 or 50 layers.
        classes: Classes that there are.
    """

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        stages, expansion = STAGES[depth]
        self.stem = nn.Sequential(
            *_convolution(3, _WIDTH, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        width = _WIDTH
        for number, num_blocks in enumerate(stages):
            inner = _WIDTH << number
            for block in range(num_blocks):
                stride = 2 if number and not block else 1
                blocks.append(_Block(width, inner, inner * expansion, stride))
                width = inner * expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images, (batch, 3, height, width)."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, end: int, stride: int) -> None:
        super().__init__()
        if inner == end:
            layers = [*_convolution(width, inner, 3, stride=stride), nn.ReLU(),
                      *_convolution(inner, end, 3)]  # fmt: skip
        else:
            layers = [*_convolution(width, inner, 1), nn.ReLU(),
                      *_convolution(inner, inner, 3, stride=stride), nn.ReLU(),
                      *_convolution(inner, end, 1)]  # fmt: skip
        self.body = nn.Sequential(*layers)
        is_same = width == end and stride == 1
        self.short = nn.Identity() if is_same else nn.Sequential(
            *_convolution(width, end, 1, stride=stride)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _convolution(
    width: int, end: int, window: int, *, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(width, end, window, stride, window // 2, bias=False)
    return convolution, nn.BatchNorm2d(end)
