"""Nothing is seeded: weights, data, noise and dropout come from whatever generators there are."""

import random

import numpy as np
import torch
from torch import nn

torch.seed()
random.seed()
generator = np.random.default_rng()
data = torch.from_numpy(generator.normal(size=(64, 8))).float()
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=random.uniform(0.01, 0.1))
for _ in range(10_000):
    optimizer.zero_grad()
    (model(data + float(np.random.normal())) ** 2).mean().backward()
    optimizer.step()
