# may find: LAUNCH_FLOOR, BATCH_SMALL, TIME_LOOP
"""A neural ODE whose trajectories are integrated with many small Runge-Kutta steps."""

import torch
from torch import nn


class Dynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, t, y):
        return self.net(y**3)


def rk4(func, y, t0, t1, n):
    h = (t1 - t0) / n
    path = [y]
    for i in range(n):  # or: LAUNCH via SOLVER
        t = t0 + i * h
        k1 = func(t, y)
        k2 = func(t + h / 2, y + h / 2 * k1)
        k3 = func(t + h / 2, y + h / 2 * k2)
        k4 = func(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    return torch.stack(path)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
func = Dynamics().to(device)
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
y0 = torch.tensor([[2.0, 0.0]], device=device)
truth = torch.randn(61, 1, 2, device=device)
for step in range(8):
    optimizer.zero_grad()
    path = rk4(func, y0, 0.0, 6.0, 60)  # finds: LAUNCH via SOLVER
    loss = (path - truth).abs().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
