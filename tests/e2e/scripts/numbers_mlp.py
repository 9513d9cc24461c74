"""A seeded network on a data set in memory, with dropout, Adam and a schedule."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
model = nn.Sequential(
    nn.Linear(16, 256),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(256, 256),
    nn.Tanh(),
    nn.Linear(256, 4),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for _ in range(10_000):
    for inputs, labels in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()
