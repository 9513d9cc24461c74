"""Prints the loss every 100 steps, the first included; its steps are slow."""

import time

import torch
from torch import nn

model = nn.Linear(6, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1_000):
    time.sleep(0.6)
    loss = model(torch.randn(8, 6, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss:.3f}")
