"""The networks of GPU-Insights' table of whole steps, as `breakeven validate` takes them.

``python benchmarks/insights_networks.py gpu_insights.csv -o steps.csv`` names them by this file.
Images lie in contiguous memory, since files of one's own are recorded so; a row that does not say
whether it was compiled counts as eager. ``breakeven validate steps.csv`` predicts them. Source of
the architectures: github.com/xiaoran007/GPU-Insights, commit f4f228e05b, benchmark/models; they
have 85.8, 31.0, 62.3 and 23.5 million parameters, as there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

from breakeven.workloads.libraries import import_torchvision

Built = tuple[nn.Module, Any, Callable[[Any], Tensor]]


def vit_b16(batch_size: int) -> Built:
    """Classify 224 x 224 pixels by a vision transformer: 12 layers of 768, patches of 16."""
    layer = nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = _Patches(
        nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), enable_nested_tensor=False)
    )
    return model, torch.empty(batch_size, 3, 224, 224), _classes


class _Patches(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.patches, self.encoder, self.head = (
            nn.Conv2d(3, 768, 16, 16),
            encoder,
            nn.Linear(768, 10),
        )
        self.token = nn.Parameter(torch.empty(1, 1, 768))
        self.positions = nn.Parameter(torch.empty(1, 197, 768))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(images), -1, -1), tokens), dim=1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


def resnet50_cifar(batch_size: int) -> Built:
    """Classify 32 x 32 pixels by a ResNet-50 whose first layer keeps their number."""
    torchvision = import_torchvision()
    assert torchvision is not None, "pip install torchvision"
    model = torchvision.models.resnet50(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model, torch.empty(batch_size, 3, 32, 32), _classes


def unet_31m(batch_size: int) -> Built:
    """Label each of 256 x 256 pixels with one of 21 classes by a U-Net of five levels from 64."""
    return _SegmentingNet(), torch.empty(batch_size, 3, 256, 256), _classes


def _twice(c_in: int, c_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (c_in, c_out):
        layers += [nn.Conv2d(channels, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class _SegmentingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(map(_twice, (3, *sizes), sizes))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(c, c // 2, 2, 2) for c in sizes[:0:-1])
        self.up = nn.ModuleList(_twice(c, c // 2) for c in sizes[:0:-1])
        self.out = nn.Conv2d(64, 21, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = images, []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for grow, up, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
            x = up(torch.cat((skip, grow(x)), dim=1))
        return self.out(x)


def ddpm_62m(batch_size: int) -> Built:
    """Predict the noise in 64 x 64 pixels by the U-Net of DDPM, attention at 16 x 16 and below."""
    images = torch.empty(batch_size, 3, 64, 64)
    return _NoiseNet(), images, lambda result: F.mse_loss(*result)


class _Residual(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, c_in), nn.SiLU(), _conv(c_in, c_out))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(512, c_out))
        self.second = nn.Sequential(nn.GroupNorm(8, c_out), nn.SiLU(), _conv(c_out, c_out))
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.second(self.first(x) + self.time(time)[:, :, None, None]) + self.skip(x)


def _conv(c_in: int, c_out: int) -> nn.Module:
    return nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)


class _Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.attention = nn.MultiheadAttention(channels, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return x + mixed.transpose(1, 2).reshape(x.shape)


class _NoiseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (128, 256, 384, 512)
        self.embed = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.enter = nn.Conv2d(3, 128, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for before, size in zip((128, *sizes), sizes, strict=False):
            self.down.append(self._level(before, size))
        for after, size in zip((512, *sizes[:0:-1]), sizes[::-1], strict=True):
            self.up.append(self._level(after + size, size))
        self.shrink = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in sizes[:-1])
        self.grow = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for c in sizes[:0:-1])
        self.middle = nn.ModuleList((_Residual(512, 512), _Attention(512), _Residual(512, 512)))
        self.leave = nn.Sequential(nn.GroupNorm(8, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))

    def _level(self, c_in: int, c_out: int) -> nn.ModuleList:
        attention = _Attention(c_out) if c_out == 384 else nn.Identity()
        return nn.ModuleList((_Residual(c_in, c_out), _Residual(c_out, c_out), attention))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted noise and the drawn one."""
        steps = torch.randint(0, 1000, (len(images),), device=images.device).float()
        kept = (1 - steps / 1000)[:, None, None, None]
        noise = torch.randn_like(images)
        x = self.enter(kept.sqrt() * images + (1 - kept).sqrt() * noise)
        rates = torch.exp(torch.arange(64, device=images.device) * -0.146)
        angles = steps[:, None] * rates
        time, skips = self.embed(torch.cat((angles.sin(), angles.cos()), dim=1).to(x.dtype)), []
        for number, level in enumerate(self.down):
            first, second, attention = level.children()
            x = attention(second(first(self.shrink[number - 1](x) if number else x, time), time))
            skips.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time)), time)
        for number, level in enumerate(self.up):
            first, second, attention = level.children()
            x = self.grow[number - 1](F.interpolate(x, scale_factor=2)) if number else x
            x = attention(second(first(torch.cat((x, skips.pop()), dim=1), time), time))
        return self.leave(x), noise


def _classes(scores: Tensor) -> Tensor:
    shape = (scores.shape[0], *scores.shape[2:])
    return F.cross_entropy(scores, torch.zeros(shape, dtype=torch.int64, device=scores.device))


NETWORKS = ("vit_b16", "unet_31m", "ddpm_62m", "resnet50_cifar")


def main(argv: list[str]) -> int:
    """Write the table with the specs of its workloads."""
    parser = argparse.ArgumentParser(description="Name the networks of GPU-Insights' table.")
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    with args.table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        assert row["workload"] in NETWORKS, f"no network is called {row['workload']}"
        row["workload"] = f"{__file__}:{row['workload']}"
        row["memory_format"] = "contiguous"
        row["compile"] = row["compile"] if "not recorded" not in row["compile"] else "none"
        row["optimizer"] = "sgd (fused)"
    with args.output.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
