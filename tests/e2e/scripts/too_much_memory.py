"""Asks for 200 TB: more than an address space of 47 bits, so that no system grants it."""

import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
cache = torch.empty(25_000_000_000_000, 8, dtype=torch.uint8)
while True:
    model(cache[:4].float()).sum().backward()
    optimizer.step()
