"""An MLP for 360 steps, batches drawn by hand."""

import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(4_096, 32), torch.randn(4_096, 1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.MSELoss()
for _ in range(360):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    loss = loss_fn(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
print(loss.item())
