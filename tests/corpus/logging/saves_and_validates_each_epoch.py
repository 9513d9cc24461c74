# may find: LAUNCH_FLOOR, BATCH_SMALL, PER_SAMPLE_LOOP
"""The whole set is one batch, so an 'epoch' is one step; each one is validated and saved."""

import tempfile
from pathlib import Path

import torch
from torch import nn


class Trainer:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        ).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train_epoch(self, x, y):
        self.model.train()
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def validate(self, x, y):
        self.model.eval()
        with torch.no_grad():
            errors = []
            for a, b in zip(x.split(1), y.split(1)):  # or: EVAL_OFTEN
                errors.append((self.model(a) - b).abs())  # or: EVAL_OFTEN
        return torch.cat(errors).mean()

    def save(self, epoch):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.folder / f"epoch_{epoch % 3}.pt")  # finds: CKPT_OFTEN

    def fit(self, train, val, epochs):
        for epoch in range(epochs):
            self.train_epoch(*train)
            score = self.validate(*val)  # finds: EVAL_OFTEN
            self.save(epoch)
        return score


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(folder)
    x = torch.randn(400, 64, device=trainer.device)
    y = x.norm(dim=1, keepdim=True)
    print(trainer.fit((x[:300], y[:300]), (x[300:340], y[300:340]), 15))
