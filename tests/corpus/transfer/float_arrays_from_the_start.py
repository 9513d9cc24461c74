# healthy
# looks like: H2D_WIDE
# may find: LAUNCH_FLOOR, H2D_PAGEABLE, ENV_BOUND, CUDNN_BENCH_OFF, CONV_BIAS, DATA_NOT_RESIDENT, SYNC_ITEM
"""Spectra come out of a simulation as float32 in each step; bytes are cast on the GPU."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
model = nn.Sequential(nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
waves = np.linspace(0, 40, 4096, dtype=np.float32)
for step in range(15):
    phase = rng.random((64, 1), dtype=np.float32)
    x = np.sin(waves * phase) + rng.random((64, 4096), dtype=np.float32)
    x = torch.from_numpy(x).cuda()
    noise = rng.integers(0, 256, size=(64, 4096), dtype=np.uint8)
    x = x + torch.from_numpy(noise).cuda().float() / 255
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
