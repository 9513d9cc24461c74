# finds in the step: BATCH_SMALL
# may find: LAUNCH_FLOOR, H2D_PAGEABLE, DATA_NOT_RESIDENT, CUDNN_BENCH_OFF, CONV_BIAS, ENV_BOUND
"""Batches of two from a loader that crops and filters each image in the training process."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        photo = rng.random((3, 96, 96), dtype=np.float32)
        for _ in range(15):  # finds: TRANSFORM_CPU
            photo = np.fft.irfft2(np.fft.rfft2(photo)).astype(np.float32)
        top, left = rng.integers(0, 32, 2)
        return torch.from_numpy(photo[:, top : top + 64, left : left + 64].copy()), index % 3


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 3),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Photos(), batch_size=2, shuffle=True)  # finds: LOADER_WORKERS0
    for photo, kind in loader:
        loss = nn.functional.cross_entropy(net(photo.to(device)), kind.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
