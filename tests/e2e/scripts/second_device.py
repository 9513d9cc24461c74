"""A model in two halves, each on a GPU of its own."""

import torch
from torch import nn

first = nn.Linear(16, 32).to("cuda:0")
second = nn.Linear(32, 4).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
x = torch.randn(64, 16, device="cuda:0")
y = torch.randint(0, 4, (64,), device="cuda:1")
for _ in range(1_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(second(first(x).relu().to("cuda:1")), y).backward()
    optimizer.step()
