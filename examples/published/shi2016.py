"""Train one of the seven networks of a benchmark of deep learning software, on made-up data.

S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking state-of-the-art deep learning software tools",
arXiv 1608.07249, Table 7. Sizes, batch sizes and optimizers are those of its Torch scripts
(github.com/hclhkbu/dlbench): plain SGD for FCN-S, AlexNet-S and the LSTM, momentum for the rest.

    python shi2016.py --network ResNet-56 --threads 2
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn, optim
from torch.nn.functional import pad, relu

VOCABULARY = 10_000
NUM_WORDS = 32


def create_fully_connected(*widths):
    """Return linear layers with a sigmoid between them."""
    layers = []
    for num_in, num_out in pairwise(widths):
        layers += [nn.Linear(num_in, num_out), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def create_alexnet_s():
    """Return AlexNet for ImageNet in one piece: no groups, no LRN, no dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, stride=4, padding=2), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True),
        nn.Linear(4096, 1000),
    )  # fmt: skip


def create_alexnet_r():
    """Return the small AlexNet for CIFAR-10, without LRN."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.MaxPool2d(3, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 10),
    )


def convolve(num_in, num_out, size, stride=1):
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(num_out),
    )


class Bottleneck(nn.Module):
    """Three convolutions, 1×1, 3×3 and 1×1, beside a shortcut."""

    def __init__(self, num_in, width, stride):
        super().__init__()
        self.reduce = convolve(num_in, width, 1)
        self.conv = convolve(width, width, 3, stride)
        self.expand = convolve(width, 4 * width, 1)
        is_same = num_in == 4 * width and stride == 1
        self.shortcut = nn.Identity() if is_same else convolve(num_in, 4 * width, 1, stride)

    def forward(self, x):
        y = relu(self.reduce(x), inplace=True)
        y = relu(self.conv(y), inplace=True)
        return relu(self.expand(y) + self.shortcut(x), inplace=True)


def create_resnet_50():
    """Return ResNet-50 for ImageNet."""
    layers = [convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    num_in = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            stride = 2 if block == 0 and width > 64 else 1
            layers.append(Bottleneck(num_in, width, stride))
            num_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, 1000))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut without parameters."""

    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.first = convolve(num_in, num_out, 3, stride)
        self.second = convolve(num_out, num_out, 3)
        self.stride = stride
        self.num_added = num_out - num_in

    def forward(self, x):
        y = self.second(relu(self.first(x), inplace=True))
        if self.num_added:
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.num_added))
        return relu(x + y, inplace=True)


def create_resnet_56():
    """Return the ResNet for CIFAR-10 with 6n + 2 layers, n = 9."""
    layers = [convolve(3, 16, 3), nn.ReLU(inplace=True)]
    num_in = 16
    for width in (16, 32, 64):
        for _ in range(9):
            layers.append(BasicBlock(num_in, width, 1 if width == num_in else 2))
            num_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class LanguageModel(nn.Module):
    """Two LSTM layers of 256 that say at each word which one comes next."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 256)
        self.lstm = nn.LSTM(256, 256, num_layers=2)
        self.output = nn.Linear(256, VOCABULARY)

    def forward(self, words):
        hidden, _ = self.lstm(self.embedding(words))
        return self.output(hidden).flatten(0, 1)


@dataclass
class Network:
    create: Callable[[], nn.Module]
    batch_size: int
    sample_shape: tuple[int, ...]
    num_classes: int
    momentum: float = 0.0

    def create_batch(self, batch_size):
        """Return inputs and targets as they would come from a data set, on the CPU."""
        if self.num_classes == VOCABULARY:
            words = torch.randint(VOCABULARY, (NUM_WORDS + 1, batch_size))
            return words[:-1], words[1:].flatten()
        inputs = torch.randn(batch_size, *self.sample_shape)
        return inputs, torch.randint(self.num_classes, (batch_size,))


NETWORKS = {
    "FCN-S": Network(
        lambda: create_fully_connected(26_752, 2048, 2048, 2048, 26_752), 64, (26_752,), 26_752
    ),
    "AlexNet-S": Network(create_alexnet_s, 16, (3, 224, 224), 1000),
    "ResNet-50": Network(create_resnet_50, 16, (3, 224, 224), 1000, momentum=0.9),
    "FCN-R": Network(
        lambda: create_fully_connected(784, 2048, 4096, 1024, 10), 1024, (784,), 10, momentum=0.9
    ),
    "AlexNet-R": Network(create_alexnet_r, 1024, (3, 32, 32), 10, momentum=0.9),
    "ResNet-56": Network(create_resnet_56, 128, (3, 32, 32), 10, momentum=0.9),
    "LSTM": Network(LanguageModel, 128, (), VOCABULARY),
}


def train(network, batch_size, num_steps):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network.create().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=network.momentum)
    batch = network.create_batch(batch_size)

    for step in range(num_steps):
        start_s = time.perf_counter()
        inputs, targets = (tensor.to(device) for tensor in batch)
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        print(f"{step + 1:4d}  loss {loss_value:7.4f}  {time.perf_counter() - start_s:.4f} s")


def main():
    parser = argparse.ArgumentParser(description="Train one network of the benchmark.")
    parser.add_argument("--network", choices=NETWORKS, default="ResNet-56")
    parser.add_argument("--batch-size", type=int, help="default: that of the benchmark")
    parser.add_argument("--steps", type=int, default=100, help="mini-batches (default: 100)")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    network = NETWORKS[arguments.network]
    train(network, arguments.batch_size or network.batch_size, arguments.steps)


if __name__ == "__main__":
    main()
