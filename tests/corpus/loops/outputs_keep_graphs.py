# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Collects the losses of all steps in a list, in order to average them at the end."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.losses = []

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.l1_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss)  # finds: GRAPH_RETAINED

    def summary(self):
        return torch.stack(self.losses).mean().item()


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)
    trainer = Trainer(model, torch.optim.Adam(model.parameters()))
    x = torch.randn(400, 8, device=device)
    y = x[:, :3].abs()
    for _ in range(60):
        trainer.step(x, y)
    print(trainer.summary())


if __name__ == "__main__":
    main()
