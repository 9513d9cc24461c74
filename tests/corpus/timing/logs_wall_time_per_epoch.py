# healthy
# looks like: TIME_NO_SYNC, TIME_WARMUP, SYNC_ITEM
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""The loss of the epoch is read before the clock is, so that the clock waits for the device."""

import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(4000, 40, device=device)
y = x.sum(1, keepdim=True)
for epoch in range(4):
    started = time.time()
    total = torch.zeros((), device=device)
    for xb, yb in zip(x.split(100), y.split(100)):
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    mean = total.item() / 40
    print(f"epoch {epoch}: loss {mean:.4f} in {time.time() - started:.2f} s")
