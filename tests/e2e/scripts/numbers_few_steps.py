"""Ends after two steps, of which each evaluates a closure; the first argument ends it earlier."""

import sys

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randn(32, 8)


def evaluate() -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    return loss


for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
    optimizer.step(evaluate)
