"""A classifier for 10 epochs of 40 steps, with a pass over validation data after each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1_680, 16)
y = (x.sum(dim=1) > 0).long()
train = DataLoader(TensorDataset(x[:1_280], y[:1_280]), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(x[1_280:], y[1_280:]), batch_size=100)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(10):
    model.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in valid)
    print(epoch, right / 400)
