# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Fit a small network to the solution of a damped oscillator, functional style."""

import torch
from torch.func import functional_call

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build():
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 32),
        torch.nn.SiLU(),
        torch.nn.Linear(32, 32),
        torch.nn.SiLU(),
        torch.nn.Linear(32, 1),
    )
    return net.to(DEVICE)


def loss_fn(net, params, t, target):
    return ((functional_call(net, params, (t,)) - target) ** 2).mean()


def guarded_step(net, params, opt, t, target):
    opt.zero_grad()
    loss = loss_fn(net, params, t, target)
    if torch.isnan(loss).any() or torch.isinf(loss).any():  # finds: SYNC_BRANCH
        print("bad loss, skipping")
        return loss
    loss.backward()
    opt.step()
    return loss


def main():
    torch.manual_seed(1)
    net = build()
    params = dict(net.named_parameters())
    opt = torch.optim.RMSprop(params.values(), lr=1e-3)
    t = torch.linspace(0, 10, 500, device=DEVICE).unsqueeze(1)
    target = torch.exp(-0.2 * t) * torch.cos(2 * t)
    for _ in range(150):
        loss = guarded_step(net, params, opt, t, target)
    print("loss", loss.item())


main()
