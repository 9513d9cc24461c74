# finds in the step: LAUNCH_FLOOR
# may find: BATCH_SMALL, LAUNCH via SOLVER
"""A physics-informed network for the heat equation: 20 points, 20 units."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).to(
    device
)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
points = torch.rand(20, 2, device=device, requires_grad=True)


def residual(xt):
    u = net(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    d2u = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)[0]
    return du[:, 1] - 0.1 * d2u[:, 0]


for step in range(100):
    optimizer.zero_grad()
    loss = residual(points).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
