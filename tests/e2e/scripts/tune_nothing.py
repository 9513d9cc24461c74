"""A step that is one product of large matrices: all of it is work that has to be done."""

import torch

torch.set_num_threads(1)
inputs = torch.randn(1024, 1024, dtype=torch.float64)
weights = torch.randn(1024, 1024, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=1e-6)
for _ in range(10_000):
    optimizer.zero_grad()
    torch.mm(inputs, weights).sum().backward()
    optimizer.step()
