# finds in the step: BATCH_SMALL
# may find: LAUNCH_FLOOR, CUDNN_BENCH_OFF, NO_TF32_AMP
"""Batch size 2, since the example the author began with had it."""

import torch
from torch import nn


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(8, b), nn.ReLU())


def main(batch_size=2):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        block(3, 32),
        block(32, 64),
        block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.rand(100, 3, 64, 64, device=device)
    labels = torch.randint(0, 10, (100,), device=device)
    for x, y in zip(images.split(batch_size), labels.split(batch_size)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
