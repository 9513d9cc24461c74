# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP, DATA_NOT_RESIDENT
"""Which is faster? Both devices in one loop, each from its first step on."""

import time

import torch
from torch import nn


def build(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).to(device)
    return net, torch.optim.Adam(net.parameters())


def run(device, steps=40):
    net, optimizer = build(device)
    x = torch.randn(512, 256, device=device)
    t = time.time()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), x).backward()
        optimizer.step()
    return (time.time() - t) / steps  # finds: TIME_NO_SYNC, TIME_WARMUP


devices = ["cpu"]
if torch.cuda.is_available():
    devices.append("cuda")
for device in devices:
    print(f"{device}: {run(device) * 1e3:.2f} ms per step")
