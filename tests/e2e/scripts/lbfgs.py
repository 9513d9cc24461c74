"""L-BFGS: one update evaluates the closure ``--max-iter`` times."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--max-iter", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(64, 8, device=device)
y = torch.randn(64, 1, device=device)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
# Tolerances of zero and a short history: each update does the same work as the one before.
optimizer = torch.optim.LBFGS(
    model.parameters(),
    lr=1e-3,
    max_iter=args.max_iter,
    tolerance_grad=0,
    tolerance_change=0,
    history_size=2,
)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(2_000):
    optimizer.step(closure)
