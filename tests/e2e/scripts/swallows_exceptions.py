"""Lets nothing stop it, not even SystemExit."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        x = torch.randn(8, 16, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    except:  # noqa: E722
        pass
