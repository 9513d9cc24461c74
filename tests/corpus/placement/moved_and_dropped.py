# may find: LAUNCH_FLOOR, BATCH_SMALL
"""``x.to(device)`` returns a copy, and nobody takes it; the model was forgotten as well."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model  # or: NOT_ON_GPU
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def train_step(self, x, y):
        x.to(self.device)  # finds: NOT_ON_GPU
        y.to(self.device)  # finds: NOT_ON_GPU
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1))  # or: NOT_ON_GPU
    trainer = Trainer(model)
    for _ in range(60):
        x = torch.randn(256, 32)
        loss = trainer.train_step(x, x.prod(1, keepdim=True))
    print(loss.item())


if __name__ == "__main__":
    main()
