# healthy
# looks like: FP64
# may find: LAUNCH_FLOOR, BATCH_SMALL
import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

# Statistics in doubles, the training in floats.
table = np.random.default_rng(0).lognormal(size=(4096, 64))
mean, std = table.mean(axis=0, dtype=np.float64), table.std(axis=0, dtype=np.float64)
x = torch.from_numpy(((table - mean) / std).astype(np.float32)).to(device)
y = torch.from_numpy(table.sum(axis=1)).float().to(device).log()

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device).float()
optimizer = torch.optim.Adam(model.parameters())
total = torch.zeros((), dtype=torch.float64, device=device)
for epoch in range(3):
    for xb, yb in zip(x.split(256), y.split(256)):
        loss = nn.functional.mse_loss(model(xb).squeeze(1), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
print(total.item(), np.float64(total.item()) / 48)
