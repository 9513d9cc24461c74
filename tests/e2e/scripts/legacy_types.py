"""Written before ``torch.device``."""

import numpy as np
import torch
from torch import nn

Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
model = nn.Linear(6, 2)
if torch.cuda.is_available():
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000):
    x = Tensor(np.random.normal(size=(8, 6)))
    weight = Tensor(8, 1).fill_(1.0)
    shift = torch.ones(8, 2).type(Tensor)
    zeros = torch.zeros(8, 2).type_as(x)
    loss = (weight * model(x) + shift + zeros).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
