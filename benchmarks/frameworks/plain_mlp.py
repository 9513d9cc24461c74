"""A small network trained by a plain loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters())
x = torch.randn(6_400, 11)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
for _ in range(20):
    for batch, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(batch), target).backward()
        optimizer.step()
