"""A small network that waits for its DataLoader most of the time; prints what it ends with."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 8), torch.randint(0, 3, (8192,)))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(60):
    for inputs, labels in DataLoader(data, batch_size=2048, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
print(losses[-1].item().hex())
