"""A loop of its own that leaves devices and the backward pass to accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
data = TensorDataset(torch.randn(320, 20), torch.randint(0, 3, (320,)))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters()), DataLoader(data, batch_size=16, shuffle=True)
)
for _ in range(200):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
