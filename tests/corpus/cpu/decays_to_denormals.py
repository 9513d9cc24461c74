# finds in the step: DENORMALS
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Leaky integrators whose traces fade out below the smallest normal float."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
trace = torch.full((1024, 1024), 1e-39, device=device)
readout = nn.Linear(1024, 10).to(device)
optimizer = torch.optim.SGD(readout.parameters(), lr=1e-3)
y = torch.randint(0, 10, (1024,), device=device)
for step in range(20):
    trace = 0.9 * trace + 0.1 * trace.roll(1, 0)  # or: DENORMALS
    loss = nn.functional.cross_entropy(readout(trace), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
