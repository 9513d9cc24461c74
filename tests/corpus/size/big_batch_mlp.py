# healthy
# looks like: BATCH_SMALL, LAUNCH_FLOOR, MEMORY_FULL
"""A few layers, but 64k rows of them: the device is busy whatever the host does."""

import torch
from torch import nn

torch.set_float32_matmul_precision("high")
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(65536, 256, device=device)
for step in range(4):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
