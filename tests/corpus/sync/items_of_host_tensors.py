# healthy
# looks like: SYNC_ITEM, SYNC_BRANCH, CPU_ROUNDTRIP
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Reads tensors that have always been on the host: seeds, lengths and a curriculum."""

import numpy as np
import torch
from torch import nn


class Curriculum:
    """Decides on the host how hard the next batch is."""

    def __init__(self, levels):
        self.thresholds = torch.linspace(0, 1, levels)
        self.progress = torch.zeros(())

    def level(self):
        self.progress += 0.01
        if self.progress > 0.5:
            return int((self.thresholds < self.progress).sum())
        return 1


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(1000, 24, device=self.device)
        self.curriculum = Curriculum(5)
        self.offsets = torch.randint(0, 900, (500,))

    def step(self, i):
        start = self.offsets[i].item()
        weight = 1.0 / self.curriculum.level()
        scale = float(np.cos(i / 100))
        batch = self.data[start : start + 100]
        loss = weight * nn.functional.mse_loss(self.model(batch), scale * batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = Trainer()
for i in range(100):
    trainer.step(i)
