"""Gradient accumulation: ``--micro-batches`` forward and backward passes for each update."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batches", type=int, default=4)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(512, 16, device=device)
labels = torch.randint(0, 4, (512,), device=device)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, labels), batch_size=8, shuffle=True
)

for _ in range(200):
    for i, (x, y) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(x), y) / args.micro_batches
        loss.backward()
        if i % args.micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
