"""Looks like reading back from the device, and is not: CUDA fills, and checks no classes."""

import torch
from torch import nn

model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labels = torch.randint(0, 4, (16,)).cuda()
for _ in range(1_000):
    scores = model(torch.randn(16, 8, device="cuda"))
    scores[scores > 3] = 0.0
    wanted = nn.functional.one_hot(labels, num_classes=4)
    loss = (scores - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
