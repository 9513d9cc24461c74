# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Measures forward and backward on their own, by the clock of the host."""

from time import perf_counter

import torch
from torch import nn


class TimedTrainer:
    def __init__(self, model, device):
        self.model = model.to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.forward_s = []
        self.backward_s = []

    def step(self, x, y):
        t0 = perf_counter()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.forward_s.append(perf_counter() - t0)  # finds: TIME_NO_SYNC
        t0 = perf_counter()
        self.optimizer.zero_grad()
        loss.backward()
        self.backward_s.append(perf_counter() - t0)  # finds: TIME_NO_SYNC
        self.optimizer.step()

    def report(self, skip=5):
        forward, backward = self.forward_s[skip:], self.backward_s[skip:]
        print("forward", sum(forward) / len(forward), "backward", sum(backward) / len(backward))


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1))
    trainer = TimedTrainer(model, device)
    x, y = torch.randn(512, 256, device=device), torch.randn(512, 1, device=device)
    for _ in range(25):
        trainer.step(x, y)
    trainer.report()


if __name__ == "__main__":
    main()
