# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(1024, 512, device=device)

for _ in range(5):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()

start = time.time()
for step in range(20):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
elapsed = time.time() - start  # finds: TIME_NO_SYNC
print(f"{elapsed / 20 * 1e3:.2f} ms per step on {device}")
