"""A step that multiplies numbers below the smallest normal float, and does little else."""

import torch
from torch import nn

torch.set_num_threads(1)
gates = nn.Parameter(torch.full((64, 512), 1e-39))
offsets = nn.Parameter(torch.ones(512))
optimizer = torch.optim.SGD([gates, offsets], lr=0.0, foreach=False)
inputs = torch.rand(64, 512)
for _ in range(10_000):
    faded = inputs * gates
    for _ in range(8):
        faded = faded * 0.99 + faded * 0.01
    optimizer.zero_grad()
    (faded + offsets).square().mean().backward()
    optimizer.step()
