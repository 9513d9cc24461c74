# healthy
# looks like: DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_WIDE
# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF
import numpy as np
import torch
from torch import nn


class DeviceBatches:
    """The whole set on the device as bytes; batches are slices of a permutation."""

    def __init__(self, images, labels, batch_size, device):
        self.images = torch.from_numpy(images).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.batch_size = batch_size

    def __iter__(self):
        order = torch.randperm(len(self.images), device=self.images.device)
        for pick in order.split(self.batch_size):
            yield self.images[pick].float().div_(255), self.labels[pick]


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3000, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, 3000)
    batches = DeviceBatches(images, labels, 100, device)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(3):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
