# healthy
# looks like: TIME_NO_SYNC, TIME_WARMUP, SYNC_EXPLICIT
# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import time

import torch
from torch import nn


def train_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = (model(x) - x).abs().mean()
    loss.backward()
    optimizer.step()


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_step(device, num_steps=30, num_warmup=10):
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 256, device=device)
    for _ in range(num_warmup):
        train_step(model, optimizer, x)
    wait(device)
    start = time.perf_counter()
    for _ in range(num_steps):
        train_step(model, optimizer, x)
    wait(device)
    return (time.perf_counter() - start) / num_steps


print(seconds_per_step(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
