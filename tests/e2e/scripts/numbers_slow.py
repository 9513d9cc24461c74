"""Steps of a second."""

import time

import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 8)).square().mean().backward()
    time.sleep(1.0)
    optimizer.step()
