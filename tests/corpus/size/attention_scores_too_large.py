# device: GTX 960
# finds in the step: MEMORY_FULL
# may find: NO_TF32_AMP, BATCH_SMALL, LAUNCH via SOLVER
"""Attention that keeps all its scores: four matrices of 8 x 2560 x 2560 floats."""

import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=64, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        t, d = x.shape
        q, k, v = self.qkv(x).view(t, 3, self.heads, d // self.heads).permute(1, 2, 0, 3)
        scores = (q @ k.transpose(1, 2)) / math.sqrt(d // self.heads)
        weights = nn.functional.dropout(scores.softmax(-1), 0.1)
        return self.out((weights @ v).transpose(0, 1).reshape(t, d))


class Trainer:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = nn.Sequential(Attention(), nn.LayerNorm(64), Attention()).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x):
        loss = (self.model(x) - x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


trainer = Trainer()
x = torch.randn(2560, 64, device=trainer.device)
for _ in range(3):
    loss = trainer.step(x)
print(loss.item())
