"""A try of a script: it ends after 20 steps."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    x = torch.randn(32, 128)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
