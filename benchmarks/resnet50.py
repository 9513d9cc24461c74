"""Train ResNet-50 on generated images: a step that is heavy enough for a CPU to feel it.

The network is that of He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR
2016, table 1, with the stride in the 3 × 3 convolution, as is common now.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 1_000
IMAGE_SIZE = 224
# Blocks, and channels inside of a block, of the four stages.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class GeneratedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images of noise, each with a class: the arithmetic is that of real ones."""

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images

    def __len__(self) -> int:
        """Return the number of images."""
        return self.num_images

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return image (3, height, width) and class ``index``."""
        return torch.randn(3, IMAGE_SIZE, IMAGE_SIZE), torch.tensor(index % NUM_CLASSES)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolution, added to the input."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * channels
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return features (batch, 4 × channels, height / stride, width / stride)."""
        return torch.relu(self.residual(images) + self.shortcut(images))


def create_resnet50() -> nn.Sequential:
    """Return the network, from images (batch, 3, 224, 224) to scores (batch, 1000)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    in_channels = 64
    for stage, (num_blocks, channels) in enumerate(STAGES):
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(in_channels, channels, stride))
            in_channels = EXPANSION * channels
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, NUM_CLASSES)
    )


def main() -> None:
    """Train for the asked number of images and print the loss of every tenth step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=16, help="images per step (default: 16)")
    parser.add_argument("--images", type=int, default=10_000, help="images (default: 10000)")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = create_resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(GeneratedImages(args.images), batch_size=args.batch, shuffle=True)
    for step, (images, classes) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
