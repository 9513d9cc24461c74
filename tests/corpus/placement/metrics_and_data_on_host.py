# healthy
# looks like: PART_ON_CPU, CPU_ROUNDTRIP, ENV_BOUND
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""The host does its share before and after the training, not within it."""

import numpy as np
import torch
from torch import nn


def simulate(n, horizon=50):
    """Random walks with drift, made once."""
    rng = np.random.default_rng(0)
    drift = rng.normal(size=(n, 1))
    return (rng.normal(size=(n, horizon)) + 0.2 * drift).cumsum(1), drift


paths, drift = simulate(3000)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.tensor(paths, dtype=torch.float32, device=device)
y = torch.tensor(drift, dtype=torch.float32, device=device)
model = nn.Sequential(nn.Linear(50, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for xb, yb in zip(x.split(100), y.split(100)):
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    prediction = model(x).cpu().numpy()
print("correlation", np.corrcoef(prediction[:, 0], drift[:, 0])[0, 1])
