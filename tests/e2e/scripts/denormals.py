"""A model whose gates are below the smallest normal float; --fixed lets the CPU flush them."""

import sys

import torch
from torch import nn

if "--fixed" in sys.argv:
    torch.set_flush_denormal(True)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(512, 16).to(device)
gates = nn.Parameter(torch.full((64, 512), 1e-39, device=device))
optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 1e-3}, {"params": gates}], lr=0.0)
x = torch.rand(64, 512, device=device)
for _ in range(10_000):
    faded = x * gates
    for _ in range(8):
        faded = faded * 0.99 + faded * 0.01
    loss = model(faded).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
