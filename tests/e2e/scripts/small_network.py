"""A small network on batches of a DataLoader, in a loop of one's own."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SORTS = "--sorts" in sys.argv

torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 16), torch.randint(0, 4, (4096,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        if SORTS:
            out = out + out.sort().values
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = loss.item()
