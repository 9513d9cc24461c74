# healthy
# looks like: PER_SAMPLE_LOOP, TIME_LOOP, GRAPH_RETAINED
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Loops over layers, over scales of a loss and over micro-batches, none of them over samples."""

import torch
from torch import nn


class ResidualStack(nn.Module):
    def __init__(self, dim=96, depth=10):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth)
        )
        self.heads = nn.ModuleList(nn.Linear(dim, 1) for _ in range(3))

    def forward(self, x):
        taps = []
        for i, layer in enumerate(self.layers):
            x = x + layer(x)
            if i in (3, 6, 9):
                taps.append(x)
        return [head(tap) for head, tap in zip(self.heads, taps)]


def deep_supervision(outputs, target):
    loss = 0.0
    for weight, output in zip((0.2, 0.3, 0.5), outputs):
        loss += weight * nn.functional.mse_loss(output, target)
    return loss


device = "cuda" if torch.cuda.is_available() else "cpu"
model = ResidualStack().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(256, 96, device=device)
y = x.mean(1, keepdim=True)
accumulate = 2
for step in range(25):
    optimizer.zero_grad()
    for xb, yb in zip(x.chunk(accumulate), y.chunk(accumulate)):
        loss = deep_supervision(model(xb), yb) / accumulate
        loss.backward()
    optimizer.step()
print(loss.item())
