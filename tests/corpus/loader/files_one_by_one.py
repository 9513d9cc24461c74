# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE, DATA_NOT_RESIDENT
"""Spectrograms stored as one text file each, parsed again in every epoch."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SpectrogramFolder(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.csv"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        values = np.loadtxt(  # finds: IO_SLOW/TRANSFORM_CPU
            self.files[i], delimiter=",", dtype=np.float32
        )
        return torch.from_numpy(values).flatten(), int(self.files[i].stem) % 5


def write_files(folder, n=96):
    rng = np.random.default_rng(0)
    for i in range(n):
        np.savetxt(Path(folder) / f"{i:04d}.csv", rng.random((40, 50)), delimiter=",", fmt="%.4f")


def train(folder, device):
    loader = DataLoader(  # finds: LOADER_WORKERS0
        SpectrogramFolder(folder), batch_size=16, shuffle=True
    )
    model = nn.Sequential(nn.Linear(2000, 128), nn.ReLU(), nn.Linear(128, 5)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


with tempfile.TemporaryDirectory() as folder:
    write_files(folder)
    train(folder, "cuda" if torch.cuda.is_available() else "cpu")
