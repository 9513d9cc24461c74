# healthy
# looks like: THREADS_OVER, THREADS_SMALL, DENORMALS
# may find: LAUNCH_FLOOR, BATCH_SMALL
import os

import torch
from torch import nn

torch.set_num_threads(min(2, os.cpu_count() or 1))
torch.set_flush_denormal(True)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 128)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = 1e-20 * torch.randn(1024, 128, device=device)
for step in range(20):
    optimizer.zero_grad()
    loss = (model(x) - x).abs().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
