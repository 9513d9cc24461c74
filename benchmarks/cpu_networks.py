"""Networks of different kinds whose training steps are timed on the CPU, from size 1 on.

Shapes: B batch, T time or position, D features, C channels, H height, W width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LEARNING_RATE = 1e-3
NUM_WORDS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and the batches that it takes.

    Args:
        kind: What its step is made of, in a few words.
        create: Makes the network.
        batch: Makes a batch of the given size.
    """

    kind: str
    create: Callable[[], nn.Module]
    batch: Callable[[int], Tensor]


class LastOutput(nn.Module):
    """A recurrent layer, read at its last position."""

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_BTD: Tensor) -> Tensor:  # noqa: N803
        """Return features (B, D)."""
        return self.layer(x_BTD)[0][:, -1]


class MeanOverPositions(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x_BTD: Tensor) -> Tensor:  # noqa: N803
        """Return features (B, D)."""
        return x_BTD.mean(dim=1)


class SkipConnection(nn.Module):
    """Two convolutions with batch norm, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(*_convolution(channels, channels)[:2], nn.ReLU())
        self.second = nn.Sequential(*_convolution(channels, channels)[:2])

    def forward(self, x_BCHW: Tensor) -> Tensor:  # noqa: N803
        """Return features of the same shape."""
        return torch.relu(x_BCHW + self.second(self.residual(x_BCHW)))


def train_step(network: nn.Module, batch: Tensor) -> Callable[[], None]:
    """Return one step: forward, backward, stochastic gradient descent."""
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return step


def _noise(*shape: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randn(size, *shape)


def _words(length: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randint(NUM_WORDS, (size, length))


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _convolution(fan_in: int, fan_out: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(fan_in, fan_out, 3, stride, 1, groups=groups, bias=False),
        nn.BatchNorm2d(fan_out),
        nn.ReLU(),
    ]


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def _residual() -> nn.Module:
    return nn.Sequential(
        *_convolution(3, 16), SkipConnection(16), SkipConnection(16), *_convolution(16, 32, 2),
        SkipConnection(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def _depthwise() -> nn.Module:
    layers = _convolution(3, 16, 2)
    for channels in (16, 32, 64):
        layers += _convolution(channels, channels, groups=channels)
        layers += [nn.Conv2d(channels, 2 * channels, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def _transformer(width: int, num_layers: int, num_heads: int) -> nn.Module:
    block = nn.TransformerEncoderLayer(width, num_heads, 4 * width, batch_first=True)
    return nn.TransformerEncoder(block, num_layers, enable_nested_tensor=False)


def _embedding() -> nn.Module:
    # Mean of words, then a classifier: the table's gradient is dense and costs the same at any
    # size of the batch.
    return nn.Sequential(nn.Embedding(NUM_WORDS, 64), MeanOverPositions(), _mlp(64, 128, 10))


def _sparse_embedding() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(NUM_WORDS, 64, sparse=True), _mlp(64, 256, 256, 1))


def _convolution_in_time() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(8, 32, 7, padding=3), nn.ReLU(), nn.Conv1d(32, 32, 7, padding=3), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


NETWORKS = {
    "mlp-small": Network(
        kind="3 layers of 64", create=lambda: _mlp(32, 64, 64, 10), batch=_noise(32)
    ),
    "mlp-wide": Network(
        kind="3 layers of 1024", create=lambda: _mlp(1024, 1024, 1024, 1024), batch=_noise(1024)
    ),
    "mlp-deep": Network(
        kind="24 layers of 128", create=lambda: _mlp(*[128] * 25), batch=_noise(128)
    ),
    "cnn": Network(kind="LeNet on 28 x 28", create=_cnn, batch=_noise(1, 28, 28)),
    "residual": Network(
        kind="residual network with batch norm on 32 x 32",
        create=_residual,
        batch=_noise(3, 32, 32),
    ),
    "depthwise": Network(
        kind="depthwise separable convolutions on 32 x 32",
        create=_depthwise,
        batch=_noise(3, 32, 32),
    ),
    "convolution-in-time": Network(
        kind="2 convolutions over 256 moments", create=_convolution_in_time, batch=_noise(8, 256)
    ),
    "lstm": Network(
        kind="LSTM of 64 over 24 moments",
        create=lambda: LastOutput(nn.LSTM(32, 64, batch_first=True)),
        batch=_noise(24, 32),
    ),
    "gru-wide": Network(
        kind="GRU of 256 over 12 moments",
        create=lambda: LastOutput(nn.GRU(128, 256, batch_first=True)),
        batch=_noise(12, 128),
    ),
    "transformer-small": Network(
        kind="2 layers of 64 on 16 positions",
        create=lambda: _transformer(64, 2, 4),
        batch=_noise(16, 64),
    ),
    "transformer": Network(
        kind="1 layer of 256 on 64 positions",
        create=lambda: _transformer(256, 1, 8),
        batch=_noise(64, 256),
    ),
    "embedding": Network(
        kind="mean of 32 words, table of 30,000 x 64", create=_embedding, batch=_words(32)
    ),
    "embedding-sparse": Network(
        kind="sum of 8 words, sparse gradient", create=_sparse_embedding, batch=_words(8)
    ),
}
