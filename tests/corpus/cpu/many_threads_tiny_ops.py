# finds in the step: THREADS_SMALL
# may find: LAUNCH_FLOOR, BATCH_SMALL
import os

import torch
from torch import nn

torch.set_num_threads(os.cpu_count())  # or: THREADS_SMALL
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(32, 32), nn.Tanh())]).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(16, 32, device=device)
for step in range(150):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
