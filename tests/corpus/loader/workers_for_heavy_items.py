# healthy
# looks like: LOADER_WORKERS0, LOADER_RESPAWN, LOADER_TOO_MANY, IO_SLOW
# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF, TRANSFORM_CPU, DATA_NOT_RESIDENT
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class PackedPatches(Dataset):
    def __init__(self, n=512):
        rng = np.random.default_rng(3)
        self.packed = [
            zlib.compress(rng.integers(0, 16, (1, 96, 96), dtype=np.uint8).tobytes())
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, i):
        patch = np.frombuffer(zlib.decompress(self.packed[i]), np.uint8).reshape(1, 96, 96)
        return torch.from_numpy(patch.copy()), i % 3


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        PackedPatches(),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = nn.Sequential(
        nn.Conv2d(1, 16, 7, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 3),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for patch, label in loader:
            patch = patch.to(device, non_blocking=True).float() / 16
            label = label.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(patch), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
