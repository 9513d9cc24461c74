"""A network learns the right-hand side of a spiral, through a solver of ordinary equations.

After ``examples/ode_demo.py`` of torchdiffeq (https://github.com/rtqichen/torchdiffeq): its
network, data, batches and optimizer. The solver is its ``rk4``, written out, so that torch is all
that this needs.
"""

import argparse
from itertools import pairwise

import torch
from torch import nn

DATA_SIZE = 1_000
BATCH_TIME = 10
BATCH_SIZE = 20


class Spiral(nn.Module):
    """The system to be learned."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])

    def forward(self, t, y):
        """Return the time derivative of ``y``."""
        return torch.mm(y**3, self.matrix)


class ODEFunc(nn.Module):
    """The network in its place."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        for module in self.net.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0, std=0.1)
                nn.init.constant_(module.bias, val=0)

    def forward(self, t, y):
        """Return the time derivative of ``y``."""
        return self.net(y**3)


def odeint(func, y0, t):
    """Return the states at the times ``t``: Runge-Kutta of order 4, the 3/8 rule."""
    solution = [y0]
    y = y0
    for t0, t1 in pairwise(t):
        dt = t1 - t0
        k1 = func(t0, y)
        k2 = func(t0 + dt / 3, y + dt * k1 / 3)
        k3 = func(t0 + dt * 2 / 3, y + dt * (k2 - k1 / 3))
        k4 = func(t1, y + dt * (k1 - k2 + k3))
        y = y + (k1 + 3 * (k2 + k3) + k4) * dt / 8
        solution.append(y)
    return torch.stack(solution)


def get_batch(true_y, t):
    """Return where some pieces of the trajectory begin, their times, and the pieces."""
    starts = torch.randperm(DATA_SIZE - BATCH_TIME)[:BATCH_SIZE]
    batch_y0 = true_y[starts]
    batch_y = torch.stack([true_y[starts + i] for i in range(BATCH_TIME)])
    return batch_y0, t[:BATCH_TIME], batch_y


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    t = torch.linspace(0.0, 25.0, DATA_SIZE)
    with torch.no_grad():
        true_y = odeint(Spiral(), torch.tensor([[2.0, 0.0]]), t)

    func = ODEFunc()
    optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        batch_y0, batch_t, batch_y = get_batch(true_y, t)
        pred_y = odeint(func, batch_y0, batch_t)
        loss = torch.mean(torch.abs(pred_y - batch_y))
        loss.backward()
        optimizer.step()

        if step % 20 == 0:
            with torch.no_grad():
                print(f"step {step:5d}  loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
