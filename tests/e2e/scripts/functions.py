"""The same step three times: a function that does one, a function that loops, and a script."""

import torch
from torch import nn

BATCH_SIZE = 24
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(BATCH_SIZE, 16, device=device)
y = torch.randint(0, 4, (BATCH_SIZE,), device=device)


def one_step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def train():
    for _ in range(2_000):
        one_step()


def not_a_step(factor):
    return factor * x.sum()


if __name__ == "__main__":
    train()
