# may find: LAUNCH_FLOOR, BATCH_SMALL, THREADS_SMALL
"""The settings of a large server, carried to a small machine."""

import os

os.environ["OMP_NUM_THREADS"] = "64"
os.environ["MKL_NUM_THREADS"] = "64"

import torch
from torch import nn


class Trainer:
    def __init__(self, threads=64):
        torch.set_num_threads(threads)  # finds: THREADS_OVER
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = nn.GRU(16, 64, batch_first=True).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, x):
        out, _ = self.model(x)
        loss = out.diff(dim=1).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = Trainer()
x = torch.randn(64, 32, 16, device=trainer.device)
for _ in range(10):
    trainer.step(x)
