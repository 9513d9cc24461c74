"""Reads a value back in the backward pass, in code of its own."""

from typing import Any

import torch
from torch import nn


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / max(gradient.norm().item(), 1.0)


model = nn.Linear(6, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000):
    loss = Clipped.apply(model(torch.randn(8, 6, device="cuda"))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
