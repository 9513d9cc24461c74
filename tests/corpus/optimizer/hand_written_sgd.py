# may find: LAUNCH_FLOOR, BATCH_SMALL
"""An optimizer of one's own: Nesterov momentum, parameter by parameter."""

import torch
from torch import nn
from torch.optim import Optimizer


class MySGD(Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:  # finds: OPT_LOOP
                if p.grad is None:
                    continue
                state = self.state[p]
                if "v" not in state:
                    state["v"] = torch.zeros_like(p)
                v = state["v"]
                v.mul_(group["momentum"]).add_(p.grad)  # or: OPT_LOOP
                p.add_(p.grad + group["momentum"] * v, alpha=-group["lr"])  # or: OPT_LOOP


def make_net(width, depth):
    blocks = [nn.Linear(10, width), nn.Tanh()]
    for _ in range(depth):
        blocks += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*blocks, nn.Linear(width, 1))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = make_net(64, 10).to(device)
opt = MySGD(net.parameters(), lr=1e-2)
x = torch.rand(200, 10, device=device)
y = torch.sin(x.sum(1, keepdim=True))
for i in range(60):
    for p in net.parameters():  # or: ZERO_GRAD
        if p.grad is not None:
            p.grad.zero_()  # finds: ZERO_GRAD
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
print(loss.item())
