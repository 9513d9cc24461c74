"""Trains a small network on batches drawn by hand from data in memory."""

import sys

import torch
from torch import nn

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 48
inputs = torch.randn(4096, 20)
labels = torch.randint(0, 5, (4096,))
network = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 5))
optimizer = torch.optim.Adam(network.parameters())

for _ in range(100):
    order = torch.randperm(4096)
    for start in range(0, 4096 - SIZE, SIZE):
        chosen = order[start : start + SIZE]
        loss = nn.functional.cross_entropy(network(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
