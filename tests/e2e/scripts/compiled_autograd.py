"""Asks for a compiled backward pass."""

import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.compiled_autograd = True
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


@torch.compile
def train(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


x = torch.randn(64, 16, device="cuda")
y = torch.randint(0, 4, (64,), device="cuda")
for _ in range(1_000):
    optimizer.zero_grad()
    train(x, y)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
