# may find: BATCH_SMALL, NO_TF32_AMP, CUDNN_BENCH_OFF, LAUNCH_FLOOR
"""Frames arrive from an endless stream, so they cannot all be kept on the GPU."""

import torch
from torch import nn


def frames(batch_size):
    generator = torch.Generator().manual_seed(0)
    pool = torch.rand(8 * batch_size, 3, 96, 96, generator=generator)
    while True:
        start = int(torch.randint(0, 7 * batch_size, (1,), generator=generator))
        yield pool[start : start + batch_size] + 0.01


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
encoder = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=4),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 64),
).to(device)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4)

for step, batch in zip(range(30), frames(64)):
    batch = batch.to(device)  # finds: H2D_PAGEABLE
    loss = (encoder(batch) - encoder(batch.flip(-1))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
