# may find: LAUNCH_FLOOR, BATCH_SMALL
"""An autoencoder that writes its reconstructions to disk at every step, to make a film later."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1024))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train(model, x, folder, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        out = model(x)
        loss = nn.functional.mse_loss(out, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        images = out.detach().view(-1, 32, 32).cpu().numpy()  # finds: LOG_HEAVY
        np.save(folder / f"{step:05d}.npy", images)  # or: LOG_HEAVY


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        train(AutoEncoder().to(device), torch.rand(256, 1024, device=device), Path(folder), 30)
