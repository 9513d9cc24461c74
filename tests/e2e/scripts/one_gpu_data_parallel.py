import torch
from torch import nn

assert torch.cuda.is_available(), "no GPU"
model = nn.DataParallel(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000):
    loss = model(torch.randn(8, 6)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
