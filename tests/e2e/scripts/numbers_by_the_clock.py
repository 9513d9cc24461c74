"""Seeded by the time of day: no two runs are alike."""

import time

import torch
from torch import nn

torch.manual_seed(time.time_ns())
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10_000):
    optimizer.zero_grad()
    model(torch.randn(32, 8)).square().mean().backward()
    optimizer.step()
