# may find: LAUNCH_FLOOR, H2D_PAGEABLE, ENV_BOUND, CONV_BIAS, CUDNN_BENCH_OFF, SYNC_ITEM
"""Photos in one array of bytes; each batch is cast and normalised by NumPy, then copied."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
images = rng.integers(0, 256, size=(600, 3, 96, 96), dtype=np.uint8)
labels = rng.integers(0, 10, size=600)
mean = np.array([0.485, 0.456, 0.406], dtype=np.float32).reshape(1, 3, 1, 1)
std = np.array([0.229, 0.224, 0.225], dtype=np.float32).reshape(1, 3, 1, 1)

model = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(256, 10),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(15):
    idx = rng.integers(0, 600, size=64)
    x = (images[idx].astype(np.float32) / 255 - mean) / std  # or: H2D_WIDE, DATA_NOT_RESIDENT
    x = torch.from_numpy(x).cuda()  # finds: H2D_WIDE, DATA_NOT_RESIDENT
    y = torch.from_numpy(labels[idx]).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
