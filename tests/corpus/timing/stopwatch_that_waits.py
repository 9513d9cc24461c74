# healthy
# looks like: TIME_NO_SYNC, TIME_WARMUP
# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP, SYNC_EXPLICIT
"""Both devices, each after ten steps, with a stopwatch that waits for a GPU."""

from time import perf_counter

import torch
from torch import nn


class Stopwatch:
    def __init__(self, device):
        self.device = torch.device(device)

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def __enter__(self):
        self.start = self.now()
        return self

    def __exit__(self, *_):
        self.seconds = self.now() - self.start


def train(net, optimizer, x, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


for device in ("cpu", "cuda"):
    net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(256, 256, device=device)
    train(net, optimizer, x, 10)
    with Stopwatch(device) as watch:
        train(net, optimizer, x, 40)
    print(device, f"{watch.seconds / 40 * 1e3:.3f} ms")
