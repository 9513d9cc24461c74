"""A script that sets by itself most of what could be set around it."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
torch.set_flush_denormal(True)
model = nn.Linear(16, 4)
nn.init.constant_(model.weight, 1e-39)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-45, foreach=False)
compiled = torch.compile(model, backend="eager")
inputs = torch.randn(8, 16)
for _ in range(10_000):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = compiled(inputs).square().mean()
    loss.backward()
    optimizer.step()
