# may find: LAUNCH_FLOOR, H2D_PAGEABLE, ENV_BOUND, CONV_BIAS, CUDNN_BENCH_OFF, SYNC_ITEM
"""The same in the style of a course: a class that hands out batches, a function that trains."""

import numpy as np
import torch
from torch import nn


class Photos:
    def __init__(self, count=500, side=96):
        self.pixels = np.random.randint(0, 256, (count, side, side, 3), dtype=np.uint8)
        self.classes = np.random.randint(0, 5, count)

    def batch(self, start, size):
        chosen = self.pixels[start : start + size]
        scaled = chosen.astype("float32") / 255.0  # or: H2D_WIDE, DATA_NOT_RESIDENT
        scaled = scaled.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(scaled), self.classes[start : start + size]


def train(model, photos, device, size=50):
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        for start in range(0, 500, size):
            pixels, classes = photos.batch(start, size)
            x = torch.tensor(pixels).to(device)  # finds: H2D_WIDE, DATA_NOT_RESIDENT
            y = torch.tensor(classes).to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
network = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
network(torch.zeros(1, 3, 96, 96))
train(network.to(device), Photos(), device)
