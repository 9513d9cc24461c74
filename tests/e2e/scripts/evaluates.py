"""Trains a small model, and evaluates it after every twentieth step."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 16), torch.randn(640, 1))
loader = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def evaluate() -> None:
    # A simulator, or a benchmark of its own, which no GPU makes faster.
    time.sleep(0.2)


for _ in range(10_000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    evaluate()
